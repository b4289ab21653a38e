"""The errors that a command may end with, by exit code."""

from __future__ import annotations

from analysis import FingerprintError, RunBusyError, RunError
from foundation.files import FileError
from foundation.registry import RegistryError
from slurm import AllocationGoneError, BatchError, LauncherError, TooFewNodesError
from trainer.plan.limits import ConfigError
from workflows.launching import LaunchError
from workflows.logged import TrackerError
from workflows.optimizer.registry import PolicyError
from workflows.search.storage import NoRoomError
from workflows.simulation.options import SimulationError


class UsageError(Exception):
    """Arguments that do not fit together; the message names the remedy."""


def input_errors() -> tuple[type[Exception], ...]:
    """Mistakes in the input: exit code 2."""
    return (
        *(FileError, BatchError, ConfigError, UsageError),
        *(FingerprintError, RunError, RunBusyError),
        *(RegistryError, PolicyError, LaunchError, SimulationError, TooFewNodesError),
    )


def interruptions() -> tuple[type[Exception], ...]:
    """Interruptions that the same command resumes after: exit code 3."""
    return (AllocationGoneError, NoRoomError)


def run_errors() -> tuple[type[Exception], ...]:
    """Failures of launchers, trackers and the system: exit code 1."""
    return (LauncherError, TrackerError, OSError)
