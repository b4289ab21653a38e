"""An Optuna study as a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.imported.times import with_times
from analysis.run.fold import Run
from analysis.run.trial import Trial
from analysis.sweeps.record import TableError
from foundation.messages import first_line, listed, shown, without_secrets
from slurm import Kind

if TYPE_CHECKING:
    import optuna

LAUNCHER = "Optuna"
_TABLES = {"studies", "version_info", "alembic_version"}  # of a database that Optuna made


def from_optuna(url: str, name: str = "") -> Run:
    """The trials of a study; its storage, such as ``sqlite:///runs.db``, is not changed.

    A pruned trial counts as stopped early, with its last reported value. ``name`` may be empty if
    there is only one study.

    Raises TableError if Optuna is not installed, or the storage or study cannot be found or read.
    """
    name, goals, keys, trials = _read(url, name)
    where = without_secrets(url)
    origin = f"Optuna's study {name} in {where}"
    run = Run(Path(where), name, launcher=LAUNCHER, origin=origin)
    run.goals = [(key, way == "maximize") for key, way in zip(keys, goals, strict=True)]
    names = dict.fromkeys(name for trial in trials for name in trial.params)
    for found in trials:
        config = {name: _plain(found.params.get(name)) for name in names}
        begun = found.datetime_start
        trial = Trial(found.number, config, begun.timestamp() if begun else math.nan)
        run.trials[found.number] = trial
        if found.state.is_finished():
            _end(trial, found, keys if len(keys) > 1 else [])
    ended = [trial for trial in trials if trial.state.is_finished()]
    known = all(t.datetime_start for t in trials) and all(t.datetime_complete for t in ended)
    return with_times(run, known, {t.number for t in trials if t.state.name == "PRUNED"})


def _plain(value: Any) -> Any:
    """A value as a configuration can have it; Optuna allows tuples and any other object."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _end(trial: Trial, found: optuna.trial.FrozenTrial, keys: list[str]) -> None:
    values = found.values or ()
    if found.state.name == "FAIL" or not values:
        trial.kind = Kind.CRASH.value
        trial.message = str(found.system_attrs.get("fail_reason", "")) or found.state.name.lower()
    else:
        trial.kind, trial.objective = Kind.OK.value, float(values[0])
        trial.objectives = dict(zip(keys, map(float, values), strict=True)) if keys else {}
    trial.ended_t = found.datetime_complete.timestamp() if found.datetime_complete else math.nan
    trial.result = {name: v for name, v in found.user_attrs.items() if isinstance(v, int | float)}


def _read(url: str, name: str) -> tuple[str, list[str], list[str], list[optuna.trial.FrozenTrial]]:
    """A study's name, directions and names of its objectives, and the trials that were started."""
    try:
        import optuna
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise TableError(
            f"{shown(url)}: optuna is not installed; `pip install 'meshtune[peers]'` brings it"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        file = make_url(url).database if url.startswith("sqlite") else None
        if file is not None and not Path(file).is_file():  # SQLAlchemy would create it
            raise TableError(f"{shown(url)}: there is no file {shown(file)}")
        if not _made_by_optuna(url):  # else Optuna would add its tables
            raise TableError(f"{shown(url)}: no storage of Optuna's")
        storage = optuna.storages.RDBStorage(url, skip_table_creation=True)
        try:
            names = optuna.get_all_study_names(storage)
            if name not in names and (name or len(names) != 1):
                wanted = (
                    f"no study {name!r}" if name else f"found {len(names)} studies, accepted one"
                )
                raise TableError(
                    f"{shown(url)}: {wanted}; name it by --study, one of: {listed(names) or 'none'}"
                )
            study = optuna.load_study(study_name=name or names[0], storage=storage)
            goals = [direction.name.lower() for direction in study.directions]
            trials = [trial for trial in study.trials if trial.state.name != "WAITING"]
            numbered = [f"objective_{i}" for i in range(len(goals))]
            keys = study.metric_names or (numbered if len(goals) > 1 else ["objective"])
            return study.study_name, goals, keys, trials
        finally:
            storage.engine.dispose()
    except TableError:
        raise
    except (
        optuna.exceptions.OptunaError,
        SQLAlchemyError,
        ImportError,
        RuntimeError,
        ValueError,
    ) as e:
        raise TableError(
            f"{shown(url)}: {first_line(e.__cause__ or e)}; try again when nothing writes to it, "
            "and see whether `optuna studies --storage` reads it"
        ) from None


def _made_by_optuna(url: str) -> bool:
    """Whether a database has Optuna's tables and their versions, so that Optuna adds nothing."""
    from sqlalchemy import create_engine, inspect, text

    engine = create_engine(url)
    try:
        tables = inspect(engine)
        if not {*tables.get_table_names()} >= _TABLES:
            return False
        columns = {column["name"] for column in tables.get_columns("version_info")}
        if not {"schema_version", "library_version"} <= columns:
            return False
        with engine.connect() as connection:
            said = (
                "SELECT schema_version FROM version_info",
                "SELECT version_num FROM alembic_version",
            )
            return all(connection.execute(text(query)).first() for query in said)
    finally:
        engine.dispose()
