"""The words of this package: a lease, what to run on it, and how a trial ended.

A launcher is anything that gives a trial its processes. Its ``run`` blocks until
every process of the trial is gone, so a node can be leased again as soon as it
returns; the driver calls it from one thread per running trial.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm.clock import Clock
from slurm.steps import Hopeless


class LauncherError(Exception):
    """The launcher itself cannot work here; the message names the remedy."""


class Kind(enum.StrEnum):
    """How a trial ended. DESIGN's failure table decides what follows from each."""

    OK = "ok"
    OOM = "oom"
    HOST_OOM = "host_oom"
    INVALID = "invalid"
    DIVERGED = "diverged"
    TIMEOUT = "timeout"
    CRASH = "crash"
    NODE_FAILURE = "node_failure"
    LAUNCH_FAILURE = "launch_failure"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"  # stopped by us: the driver is ending

    @property
    def told(self) -> bool:
        """Whether the optimizer learns of it: it says something about the configuration."""
        return self not in _RETRIED

    @property
    def retried(self) -> bool:
        """Whether it says nothing about the configuration, so the same one runs again."""
        return self in _RETRIED


# Nobody asked for these ends, and they say nothing about the configuration.
BLAMELESS = frozenset({Kind.NODE_FAILURE, Kind.LAUNCH_FAILURE, Kind.PREEMPTED})
_RETRIED = BLAMELESS | {Kind.CANCELLED}


@dataclass(frozen=True)
class Lease:
    """Nodes that one trial holds exclusively, in Slurm's order."""

    trial: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class ResultSource:
    """Where a trial's figures are found, tried in this order.

    ``result.json`` in the trial's folder; the last line ``MESHTUNE_RESULT {json}`` of its
    standard output; for each name in ``patterns`` the last match of its regular expression
    (group 1, a number) in either log.
    """

    patterns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialSpec:
    """What to run, whatever gives it processes.

    ``argv`` is the command of every rank, started in ``directory``, with ``RANK``, ``WORLD_SIZE``,
    ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` in its environment.
    """

    name: str  # unique per attempt and run; the Slurm step's job name
    directory: Path  # absolute, exists; stdout.log, stderr.log, command.txt go here
    argv: tuple[str, ...]
    num_nodes: int
    ranks_per_node: int
    timeout_s: float
    no_progress_timeout_s: float | None = None  # no growth of the logs for so long: a hang
    cpus_per_rank: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    memory_bytes_per_rank: int | None = None  # host memory; enforced where the launcher can
    grace_s: float = 10.0  # between the polite and the final signal
    result: ResultSource = ResultSource()
    config: Mapping[str, Any] = field(default_factory=dict)  # for a launcher without processes

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True)
class Outcome:
    """How a trial ended, and the evidence."""

    kind: Kind
    result: Mapping[str, Any] | None = None  # the trainer's figures, where it gave any
    message: str = ""  # one line: what was seen that decided the kind
    stderr_tail: str = ""
    exit_code: int | None = None
    elapsed_s: float = 0.0
    early: bool = False  # stopped as hopeless: the result is of its steps until then
    saved_s: float = 0.0  # that it would have run on
    suspect_nodes: tuple[str, ...] = ()  # to be quarantined
    lost_nodes: tuple[str, ...] = ()  # to leave the pool: down, or processes that would not die


class Launcher(ABC):
    """One way of giving a trial its processes."""

    name: str
    max_concurrent: int = 90
    clock: Clock = Clock()
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
        hopeless: Hopeless | None = None,
    ) -> Outcome:
        """Start the trial, watch it, and return when no process of it is left.

        ``stop`` asks all trials for an end; the outcome is then CANCELLED unless the trial had
        already ended by itself. ``hopeless`` is asked after every step that this trial speaks of,
        and may end it alone: the outcome is then OK and ``early``, unless it had ended by itself.
        """

    @abstractmethod
    def settle(self, names: Iterable[str]) -> None:
        """End what an earlier driver left running under these trial names; returns when gone."""

    def down_nodes(self) -> set[str]:
        """Nodes that are known to be unusable now."""
        return set()

    def time_left_s(self) -> float | None:
        """Seconds until the allocation ends; None where there is no end."""
        return None

    def close(self) -> None:  # noqa: B027 - most launchers hold nothing
        """Free what the launcher holds."""
