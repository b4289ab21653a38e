"""Any search's trials as a run: meshtune's, DeepHyper's or Optuna's."""

from __future__ import annotations

from pathlib import Path

from analysis.imported.deephyper import from_deephyper
from analysis.imported.optuna import from_optuna
from analysis.run.fold import Run, read_run
from analysis.run.folder import RunFolder


def read_results(where: str, study: str = "") -> Run:
    """The run that a search has left; one of another program's has no folder.

    Args:
        where: a run's folder or a file in it, DeepHyper's ``results.csv``, or the URL of an Optuna
            storage, such as ``sqlite:///runs.db``.
        study: name in a storage of several.

    Raises:
        RunError: a run's folder that cannot be read.
        TableError: there are no such results, or they cannot be read.
    """
    if "://" in where:
        return from_optuna(where, study)
    file = Path(where)
    if not file.is_file():
        return read_run(file)
    return read_run(file.parent) if RunFolder(file.parent).started else from_deephyper(file)
