"""A study of Optuna's as a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.imported.times import NOT_SAID, with_times
from analysis.run.fold import Run
from analysis.run.trial import Trial
from analysis.sweeps.record import TableError
from slurm import Kind, listed, shown

if TYPE_CHECKING:
    import optuna

LAUNCHER = "Optuna"
_TABLE = "studies"  # of a database that Optuna made


def from_optuna(url: str, name: str = "") -> Run:
    """The trials of a study. Nothing is written to its storage.

    A pruned trial counts as stopped early, with the last value that it reported.

    Args:
        url: of the storage, such as ``sqlite:///runs.db``.
        name: of the study; may be empty where there is one only.

    Raises:
        TableError: if Optuna is not installed, or there is no such storage or study.
    """
    study = _study(url, name)
    goals = [d.name.lower() for d in study.directions]
    keys = study.metric_names or _keys(len(goals))
    run = Run(Path(url), study.study_name, launcher=LAUNCHER, objective={goals[0]: keys[0]})
    several = len(goals) > 1
    run.objectives = [{g: key} for g, key in zip(goals, keys, strict=True)] if several else []
    run.origin, run.not_said = f"Optuna's study {study.study_name} in {url}", NOT_SAID
    trials = [trial for trial in study.trials if trial.state.name != "WAITING"]
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    for found in trials:
        config = {name: found.params.get(name) for name in names}
        begun = found.datetime_start
        trial = Trial(found.number, config, begun.timestamp() if begun else math.nan)
        run.trials[found.number] = trial
        if found.state.is_finished():
            _end(trial, found, keys if several else [])
    ended = [trial for trial in trials if trial.state.is_finished()]
    known = all(t.datetime_start for t in trials) and all(t.datetime_complete for t in ended)
    run = with_times(run, known)
    for found in trials:
        for attempt in run.trials[found.number].attempts:
            attempt.stopped_early = found.state.name == "PRUNED"
    return run


def _end(trial: Trial, found: optuna.trial.FrozenTrial, keys: list[str]) -> None:
    """Say of a trial how it ended."""
    values = found.values or ()
    if found.state.name == "FAIL" or not values:
        trial.kind = Kind.CRASH.value
        trial.message = str(found.system_attrs.get("fail_reason", "")) or found.state.name.lower()
    else:
        trial.kind, trial.objective = Kind.OK.value, float(values[0])
        trial.objectives = dict(zip(keys, map(float, values), strict=True)) if keys else {}
    trial.ended_t = found.datetime_complete.timestamp() if found.datetime_complete else math.nan
    trial.result = {name: v for name, v in found.user_attrs.items() if isinstance(v, int | float)}


def _keys(count: int) -> list[str]:
    return ["objective"] if count == 1 else [f"objective_{i}" for i in range(count)]


def _study(url: str, name: str) -> Any:
    """The study of this name, or the only one."""
    try:
        import optuna
        from sqlalchemy import create_engine, inspect
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise TableError(
            f"{shown(url)}: optuna is not installed; `pip install 'meshtune[peers]'` brings it"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        file = make_url(url).database if url.startswith("sqlite") else None
        if file is not None and not Path(file).is_file():  # it would be made
            raise TableError(f"{shown(url)}: there is no file {shown(file)}")
        engine = create_engine(url)
        try:
            made = inspect(engine).has_table(_TABLE)  # Optuna would add its tables to any other
        finally:
            engine.dispose()
        if not made:
            raise TableError(f"{shown(url)}: no storage of Optuna's")
        names = optuna.get_all_study_names(url)
        if name not in names and (name or len(names) != 1):
            wanted = f"no study {name!r}" if name else f"found {len(names)} studies, accepted one"
            raise TableError(
                f"{shown(url)}: {wanted}; name it by --study, one of: {listed(names) or 'none'}"
            )
        return optuna.load_study(study_name=name or names[0], storage=url)
    except (SQLAlchemyError, ImportError, RuntimeError) as error:
        raise TableError(f"{shown(url)}: {str(error).splitlines()[0]}") from None
