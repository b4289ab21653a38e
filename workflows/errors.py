"""The errors that a command may end with, and whose they are."""

from __future__ import annotations

from analysis.run import RunError
from slurm.batch import BatchError
from slurm.core import LauncherError
from slurm.site import SiteError
from trainer.config import ConfigError
from workflows.folder import FingerprintError
from workflows.journal import RunBusyError
from workflows.space import SpaceError


class UsageError(Exception):
    """Arguments that do not fit together; the message names the remedy."""


def input_errors() -> tuple[type[Exception], ...]:
    """Mistakes of the caller's: exit code 2."""
    return (
        *(SpaceError, SiteError, BatchError, ConfigError, UsageError),
        *(FingerprintError, RunError, RunBusyError),
    )


def run_errors() -> tuple[type[Exception], ...]:
    """What can go wrong outside: exit code 1."""
    return (LauncherError, OSError)
