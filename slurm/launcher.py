"""A launcher: anything that gives a trial its processes.

Its ``run`` blocks until every process of the trial is gone, so a node can be leased again as soon
as it returns; the driver calls it from one thread per running trial.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.clock import Clock
from slurm.outcome.classify import Outcome
from slurm.outcome.step_log import StopRule
from slurm.trial import Lease, TrialSpec


class LauncherError(Exception):
    """The launcher itself cannot work here; the message names the remedy."""


class AllocationGoneError(LauncherError):
    """The allocation is over; the same command resumes in another one."""


class TooFewNodesError(LauncherError):
    """Nothing fits on the launcher's nodes; the message says how many are needed."""


class AllocationState(enum.Enum):
    """What is known of the nodes that a scheduler has lent."""

    HELD = "held"
    SILENT = "the scheduler does not answer"  # trials that run may go on; none can be started
    GONE = "gone"  # cancelled, timed out, taken away: whatever runs on them is being ended


@dataclass(frozen=True)
class LauncherOptions:
    """What the command line, or a caller of Python's, says of a launcher it wants.

    Each launcher takes what concerns it. Settings that only it has it reads where its users expect
    them: from the environment, or a file of its own.
    """

    num_nodes: int = 1  # of the widest trial: what is needed at least, where nodes can be chosen
    site: str = "generic"  # a site profile's name or file
    hostfile: Path | None = None  # nodes, where no allocation tells them


class Launcher(ABC):
    """One way of giving a trial its processes."""

    name: str
    max_concurrent: int = 90
    clock: Clock = Clock()
    shares_launches: bool = False  # it heeds ``TrialSpec.kept``
    simulated: bool = False  # nothing of it is real: no data is needed, nothing need be synced

    @abstractmethod
    def nodes(self) -> Sequence[str]:
        """Every node that may be leased, in canonical order (Slurm's)."""

    @abstractmethod
    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        """The exact argv that ``run`` would start; pure."""

    @abstractmethod
    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        """Start the trial, watch it, and return when no process of it is left.

        ``stop`` asks all trials for an end; the outcome is then CANCELLED unless the trial had
        already ended by itself. ``stop_rule`` is asked after every step that this trial reports,
        and may end it alone: the outcome is then OK and ``stopped_early``, unless it had ended by
        itself.
        """

    @abstractmethod
    def settle(self, names: Iterable[str]) -> None:
        """End what an earlier driver left running under these trial names; returns when gone.

        A search calls it before its first trial, even if nothing was left: with no names too it
        fails where no trial can be started at all.

        Raises:
            LauncherError: if something would not go, or the launcher cannot work here.
        """

    def down_nodes(self) -> set[str]:
        """Nodes that are known to be unusable now."""
        return set()

    def allocation_state(self) -> AllocationState | None:
        """Whether the nodes are still lent, as the scheduler says now; None: nobody lends them.

        The driver asks it now and then, and after every failure that the end of the allocation or
        a silent scheduler may have caused: such a failure is not the trial's.
        """
        return None

    def gpus_per_node(self) -> int | None:
        """GPUs that a trial can use on one of the nodes; None if the launcher cannot tell."""
        return None

    def time_left_s(self) -> float | None:
        """Seconds until the allocation ends; None where there is no end."""
        return None

    def close(self) -> None:  # noqa: B027 - most launchers hold nothing
        """Free what the launcher holds."""
