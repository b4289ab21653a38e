"""The interface of launchers, which start and end the processes of trials.

``run`` blocks until every process of the trial is gone, so its nodes can be leased again as soon as
it returns; the driver calls it from one thread per running trial.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from foundation.registry import Registry, RegistryError
from slurm.clock import Clock
from slurm.outcome.classify import Outcome
from slurm.outcome.step_log import StopRule
from slurm.trial import Lease, TrialSpec

if TYPE_CHECKING:
    from foundation.container import Container  # pydantic


class LauncherError(Exception):
    """The launcher cannot work in this environment; the message names the remedy."""


class AllocationGoneError(LauncherError):
    """The allocation is over; the same command resumes in another one."""


class TooFewNodesError(LauncherError):
    """Nothing fits on the launcher's nodes; the message says how many are needed."""


def check_width(spec: TrialSpec, lease: Lease) -> None:
    """Raise LauncherError unless the lease has as many nodes as the trial needs."""
    if len(lease.nodes) != spec.num_nodes:
        raise LauncherError(
            f"{spec.name} needs {spec.num_nodes} nodes, its lease has {len(lease.nodes)}"
        )


class AllocationState(enum.Enum):
    """State of the allocation that a scheduler has granted."""

    HELD = "held"
    SILENT = "the scheduler does not answer, or the job is suspended"  # no trial can be started
    GONE = "gone"  # cancelled, timed out, preempted: whatever runs on its nodes is being ended


@dataclass(frozen=True)
class LauncherOptions:
    """Options of the command line, or of a caller in Python, for any launcher.

    Each launcher uses those that concern it, and reads further settings from the environment or a
    file of its own.
    """

    num_nodes: int = 1  # of the widest trial
    site: str = "generic"  # a site profile's name or file
    hostfile: Path | None = None  # hosts, if no allocation lists them
    exclude: str = ""  # nodes of the allocation to leave alone, as Slurm lists them


class Launcher(ABC):
    """One way of starting the processes of trials."""

    name: str
    max_concurrent: int = 90
    clock: Clock = Clock()
    shares_launches: bool = False  # supports ``TrialSpec.kept``
    simulated: bool = False  # starts no processes: needs no data, and no sync of files

    @abstractmethod
    def nodes(self) -> Sequence[str]:
        """Every node that may be leased, in Slurm's order."""

    def check_container(self, container: Container) -> None:
        """Raise LauncherError if trials cannot run in this container here."""
        raise LauncherError(
            f"trainer.container: the launcher {self.name} starts no containers, srun does: search "
            "in a Slurm allocation, or put the runtime into a command of your own "
            "(command: [apptainer, exec, IMAGE, python, train.py])"
        )

    @abstractmethod
    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        """The command that starts the trial by hand as ``run`` does; pure."""

    @abstractmethod
    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        """Start the trial, watch it, and return when no process of it is left.

        ``stop`` ends all trials, with the outcome CANCELLED. ``stop_rule``, asked after every step
        that this trial reports, may end it alone, with the outcome OK and ``stopped_early``. A
        trial that had already ended by itself keeps its outcome.
        """

    @abstractmethod
    def settle(self, names: Iterable[str]) -> None:
        """End the processes that an earlier driver left of these trials; return when they are gone.

        A search calls it before its first trial, even without names, to see that trials can start.

        Raises LauncherError if processes do not end, or the launcher cannot work here.
        """

    def down_nodes(self) -> set[str]:
        """Nodes that are known to be unusable now."""
        return set()

    def allocation_state(self) -> AllocationState | None:
        """State of the allocation according to the scheduler; None: there is no scheduler.

        The driver asks now and then, and after every failure that the end of the allocation or a
        silent scheduler may have caused: the trial is not to blame for such a failure.
        """
        return None

    def gpus_per_node(self) -> int | None:
        """GPUs that a trial can use on one node; None if unknown."""
        return None

    def time_left_s(self) -> float | None:
        """Seconds until the allocation ends; None if it has no end."""
        return None

    def close(self) -> None:  # noqa: B027 - most launchers hold nothing
        """Free what the launcher holds."""


LauncherFactory = Callable[[LauncherOptions], Launcher]

LAUNCHERS: Registry[LauncherFactory] = Registry(
    "launcher",
    "meshtune.launchers",
    {
        "local": "slurm.local.launcher:LocalLauncher.from_options",
        "srun": "slurm.srun.launcher:SrunLauncher.from_options",
        "mpiexec": "slurm.mpiexec.launcher:MpiexecLauncher.from_options",
    },
)


def make_launcher(
    name: str, options: LauncherOptions, more: Mapping[str, LauncherFactory] = MappingProxyType({})
) -> Launcher:
    """Make the launcher of that name; ``more`` are the caller's own factories.

    Raises RegistryError if there is none, or its factory returns no Launcher; LauncherError if it
    cannot work here.
    """
    factory = LAUNCHERS.get(name, more)
    if options.exclude and name != "srun":
        raise LauncherError(
            f"--exclude {options.exclude}: the launcher {name} takes no part of an allocation; for "
            "mpiexec leave the hosts out of --hostfile"
        )
    launcher = factory(options)
    if not isinstance(launcher, Launcher):
        raise RegistryError(
            f"launcher {name!r} is of type {type(launcher).__name__}; "
            "a factory returns a slurm.Launcher"
        )
    return launcher
