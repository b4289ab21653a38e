"""``meshtune to-mlflow``: a run as an experiment of MLflow's, a trial a run of it."""

from __future__ import annotations

import importlib
import re
from typing import Any

from analysis import Run
from foundation.messages import first_line, shown
from workflows.logged import Logged, TrackerError, ended, identity, logged, tracker

TRIAL, RUN = "meshtune.trial", "meshtune.run"  # tags: of a run of MLflow's, of its experiment
PAGE = 1_000  # runs that are asked for at a time
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_NO_NAME = re.compile(r"[^\w./: -]", re.ASCII)  # characters that no name of MLflow's has


def to_mlflow(run: Run, uri: str, name: str) -> tuple[int, int]:
    """Add a run's trials to an experiment; those that it has already are left as they are.

    What an interrupted call has begun is completed, in the run of MLflow's that it has made.

    Args:
        run: to be told.
        uri: of MLflow's store: a server, ``sqlite:///mlflow.db``, a folder.
        name: of the experiment, which is made if need be.

    Returns:
        How many were added, and how many the experiment had.

    Raises:
        ValueError: if MLflow is not installed, there can be no such store, or its experiment is of
            another run.
        TrackerError: if it cannot be reached, or there is no room.
    """
    mlflow = tracker("mlflow")
    if uri.startswith(DATABASES):
        _check_databases()
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, run, name)
        known, begun = _known(client, experiment)
        trials = ended(run)
        new = [trial for trial in trials if str(trial.number) not in known]
        for trial in new:
            what = logged(run, trial)
            run_id = begun.get(str(trial.number)) or _begin(client, experiment, what)
            _complete(mlflow, client, run_id, what, trial.ok)
    except mlflow.MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise ValueError(first_line(error)) from None
        raise _failed(uri, error) from None
    except ImportError as error:  # a database's own module
        raise ValueError(f"{first_line(error)}; install it, or name a server") from None
    except OSError as error:
        raise _failed(uri, error) from None
    return len(new), len(trials) - len(new)


def _check_databases() -> None:
    """Raise if MLflow could not write to any: mlflow-skinny comes without what that needs."""
    try:
        importlib.import_module("sqlalchemy")
        importlib.import_module("alembic")
    except ImportError:
        raise ValueError(
            "MLflow needs more packages for a database; `pip install sqlalchemy alembic`, or name "
            "a server"
        ) from None


def _failed(uri: str, error: Exception) -> TrackerError:
    return TrackerError(
        f"{shown(uri)}: {shown(first_line(error), 400)}; see that the server runs, or that the "
        "disk has room, and repeat the command: it adds what is missing"
    )


def _experiment(client: Any, run: Run, name: str) -> str:
    """The experiment's id."""
    found = client.get_experiment_by_name(name)
    if found is None:
        made: str = client.create_experiment(name, tags={RUN: identity(run)})
        return made
    if found.tags.get(RUN) != identity(run):
        raise ValueError(f"the experiment {name!r} there is of another run; choose another --name")
    return str(found.experiment_id)


def _known(client: Any, experiment: str) -> tuple[set[str], dict[str, str]]:
    """Numbers of the trials that it has to their end; runs of those that were only begun."""
    known: set[str] = set()
    begun: dict[str, str] = {}
    token = None
    while True:
        page = client.search_runs([experiment], max_results=PAGE, page_token=token)
        for found in page:
            number = found.data.tags.get(TRIAL, "")
            if found.info.status == "RUNNING":
                begun[number] = found.info.run_id
            else:
                known.add(number)
        token = page.token
        if not token:
            return known, begun


def _begin(client: Any, experiment: str, what: Logged) -> str:
    """A run of MLflow's for a trial; its id."""
    tags = {TRIAL: what.tags["trial"]} | {f"meshtune.{k}": v for k, v in what.tags.items() if v}
    made = client.create_run(
        experiment, start_time=round(1000 * what.started_t), tags=tags, run_name=what.name
    )
    return str(made.info.run_id)


def _complete(mlflow: Any, client: Any, run_id: str, what: Logged, ok: bool) -> None:
    entities, ended_ms = mlflow.entities, round(1000 * what.ended_t)
    client.log_batch(
        run_id,
        metrics=[entities.Metric(_name(k), v, ended_ms, 0) for k, v in what.metrics.items()],
        params=[entities.Param(_name(k), str(value)) for k, value in what.parameters.items()],
    )
    client.set_terminated(run_id, "FINISHED" if ok else "FAILED", ended_ms)


def _name(key: str) -> str:
    """As MLflow takes it."""
    return _NO_NAME.sub("_", key)
