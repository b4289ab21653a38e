"""The errors that a command may end with, and whose they are."""

from __future__ import annotations

from analysis.run.events import RunError
from analysis.run.folder import FingerprintError
from analysis.run.journal import RunBusyError
from search_spaces import SpaceError
from slurm.launcher import LauncherError
from slurm.registry import RegistryError
from slurm.srun.batch import BatchError
from slurm.srun.site import SiteError
from trainer.config import ConfigError
from workflows.launching import LaunchError
from workflows.optimizer.registry import PolicyError
from workflows.simulation.options import SimulationError


class UsageError(Exception):
    """Arguments that do not fit together; the message names the remedy."""


def input_errors() -> tuple[type[Exception], ...]:
    """Mistakes of the caller's: exit code 2."""
    return (
        *(SpaceError, SiteError, BatchError, ConfigError, UsageError),
        *(FingerprintError, RunError, RunBusyError),
        *(RegistryError, PolicyError, LaunchError, SimulationError),
    )


def run_errors() -> tuple[type[Exception], ...]:
    """What can go wrong outside: exit code 1."""
    return (LauncherError, OSError)
