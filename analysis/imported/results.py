"""Which reader takes what: a file of DeepHyper's, a storage of Optuna's."""

from __future__ import annotations

from pathlib import Path

from analysis.imported.deephyper import from_deephyper
from analysis.imported.optuna import from_optuna
from analysis.run.fold import Run


def is_storage(where: str) -> bool:
    """Whether a name is that of a database: ``sqlite:///runs.db``."""
    return "://" in where


def read_results(where: str, study: str = "") -> Run:
    """The trials that another program's search has left, as a run without a folder.

    Args:
        where: DeepHyper's ``results.csv``, or the URL of a storage of Optuna's.
        study: in a storage; may be empty where there is one only.

    Raises:
        TableError: if there is no such thing, or it cannot be read.
    """
    return from_optuna(where, study) if is_storage(where) else from_deephyper(Path(where))
