"""Any search's trials as a run: meshtune's, DeepHyper's or Optuna's."""

from __future__ import annotations

from pathlib import Path

from analysis.imported.deephyper import results_run
from analysis.imported.optuna import from_optuna
from analysis.run.fold import Run, read_run
from analysis.run.folder import RunFolder
from analysis.sweeps.record import TableError
from foundation.messages import shown


def read_results(where: str, study: str = "") -> Run:
    """The run in a search's folder or a file in it, in DeepHyper's ``results.csv``, or in an Optuna
    storage by its URL, such as ``sqlite:///runs.db``, in which ``study`` names one.

    Raises RunError if a run's folder, TableError if another program's results cannot be read.
    """
    if "://" in where:
        return from_optuna(where, study)
    file = Path(where)
    if not file.is_file() and (file.is_dir() or file.suffix.lower() != ".csv"):
        return read_run(file)
    if RunFolder(file.parent).started:
        return read_run(file.parent)
    run = results_run(file) if file.suffix.lower() not in (".yaml", ".yml", ".json") else None
    if run is None:
        raise TableError(
            f"{shown(file)}: not a results.csv, nor a run's folder: accepted columns p:NAME, and "
            "objective or objective_0, objective_1 ..."
        )
    return run
