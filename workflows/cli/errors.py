"""The errors that a command may end with, by exit code."""

from __future__ import annotations

from analysis import RunError
from foundation.files import FileError
from foundation.registry import RegistryError
from slurm import AllocationGoneError, BatchError, LauncherError, TooFewNodesError
from trainer.plan.limits import ConfigError
from workflows.cli.arguments import UsageError
from workflows.launching import LaunchError
from workflows.optimizer.registry import PolicyError
from workflows.search.storage import NoRoomError
from workflows.simulation.workload import SimulationError
from workflows.trackers import TrackerError

EXIT_CODES: dict[int, tuple[type[Exception], ...]] = {
    # Mistakes in the input.
    2: (
        *(FileError, RunError, BatchError, ConfigError, UsageError),
        *(RegistryError, PolicyError, LaunchError, SimulationError, TooFewNodesError),
    ),
    # Interruptions: the same command resumes.
    3: (AllocationGoneError, NoRoomError),
    # Failures of launchers, trackers and the system.
    1: (LauncherError, TrackerError, OSError),
}
"""Errors by exit code; the first code that has an error's class counts."""


def exit_code(error: Exception) -> int | None:
    """The process's exit code after an error; None for an error of meshtune's own."""
    return next((code for code, kinds in EXIT_CODES.items() if isinstance(error, kinds)), None)
