"""``meshtune to-mlflow``, ``to-wandb``: a run's trials as those of an experiment tracker."""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from analysis import Metrics, Run, Trial
from foundation.messages import first_line, shown


class TrackerError(Exception):
    """A tracker refused trials; the message names the remedy."""


@dataclass(frozen=True)
class Logged:
    name: str  # shown by the tracker
    parameters: dict[str, Any]  # the configuration, without inactive parameters
    # objectives, other measurements, predictions and node-hours; all of them finite
    metrics: dict[str, float]
    tags: dict[str, str]  # other facts, as text
    started_t: float  # seconds since the epoch
    ended_t: float


def logged(run: Run, trial: Trial) -> Logged:
    measured = Metrics(trial.result).all() if trial.ok else {}
    for key, _ in run.goals:
        value = trial.objectives.get(key, trial.objective)
        if value is not None:
            measured[key] = value
    expected = {f"expected.{key}": value for key, value in trial.expected.items()}
    metrics = {**measured, **expected, "node_hours": trial.node_seconds / 3600}
    started_t, ended_t = times(trial)
    return Logged(
        name=f"trial {trial.number}",
        parameters={name: v for name, v in trial.config.items() if v is not None},
        metrics={key: float(v) for key, v in metrics.items() if math.isfinite(v)},
        tags={
            "trial": str(trial.number),
            "kind": str(trial.kind),
            "by": trial.by,
            "why": trial.why,
            "measurements": str(len(trial.measurements)),
            "stopped_early": str(trial.stopped_early).lower(),
            "message": trial.message,
        },
        started_t=started_t,
        ended_t=ended_t,
    )


def times(trial: Trial) -> tuple[float, float]:
    """Start and end of a trial, seconds since the epoch."""
    started_t = trial.attempts[0].started_t if trial.attempts else trial.proposed_t
    return started_t, trial.ended_t or started_t


def identity(run: Run) -> str:
    """A name that no other run has: trials of other runs have the same numbers."""
    return f"{run.fingerprint[:12]}-{run.opened_t[0] if run.opened_t else 0.0:.0f}"


def tracker(name: str) -> Any:
    """A tracker's module; raises ValueError with the remedy if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"{name} is not installed; `pip install 'meshtune[trackers]'` brings it"
        ) from None


TRIAL, RUN = "meshtune.trial", "meshtune.run"  # tags: of an MLflow run, of an experiment
PAGE = 1_000  # runs per request
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_NO_NAME = re.compile(r"[^\w./: -]", re.ASCII)  # characters that MLflow accepts in no name


def to_mlflow(run: Run, uri: str, name: str) -> tuple[int, int]:
    """Add a run's trials to an experiment, which is made unless it exists.

    A trial that an interrupted call has begun is completed in the same MLflow run.

    Returns the number of added trials, and of those that were there already, which stay.

    Raises ValueError if MLflow is not installed, the URI is wrong, or the experiment is another
    run's; TrackerError if the store cannot be reached, or its disk is full.
    """
    mlflow = tracker("mlflow")
    # mlflow-skinny comes without them.
    if uri.startswith(DATABASES) and not (find_spec("sqlalchemy") and find_spec("alembic")):
        raise ValueError(
            "MLflow needs more packages for a database; `pip install sqlalchemy alembic`, or name "
            "a server"
        )
    try:
        client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, run, name)
        known, begun = _known(client, experiment)
        trials = run.ended
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


def _failed(uri: str, error: Exception) -> TrackerError:
    return TrackerError(
        f"{shown(uri)}: {shown(first_line(error), 400)}; see that the server runs, or that the "
        "disk has room, and repeat the command: it adds what is missing"
    )


def _experiment(client: Any, run: Run, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        made: str = client.create_experiment(name, tags={RUN: identity(run)})
        return made
    if found.tags.get(RUN) != identity(run):
        raise ValueError(f"the experiment {name!r} there is of another run; choose another --name")
    return str(found.experiment_id)


def _known(client: Any, experiment: str) -> tuple[set[str], dict[str, str]]:
    """Numbers of complete trials; MLflow run ids of those that were only begun."""
    found: list[Any] = []
    token = None
    while True:
        page = client.search_runs([experiment], max_results=PAGE, page_token=token)
        found += page
        if not (token := page.token):
            break
    of = [(one.data.tags.get(TRIAL, ""), one.info) for one in found]
    begun = {number: info.run_id for number, info in of if info.status == "RUNNING"}
    return {number for number, info in of if info.status != "RUNNING"}, begun


def _begin(client: Any, experiment: str, what: Logged) -> str:
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
    return _NO_NAME.sub("_", key)


def to_wandb(run: Run, project: str, name: str, folder: Path) -> int:
    """Add a run's trials to a project's group ``name``; return how many were written.

    A W&B run's id follows from its trial, so that a second call writes the same runs; its metrics
    are all in the summary, as each call would append to a history.

    Raises ValueError if W&B is not installed, TrackerError if it refuses, or the disk is full.
    """
    wandb = tracker("wandb")
    trials = run.ended
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
    try:
        for trial in trials:
            what = logged(run, trial)
            made = wandb.init(
                project=project,
                group=name,
                name=what.name,
                id=f"{identity(run)}-{trial.number}",
                resume="allow",
                reinit="finish_previous",
                config={**what.parameters, "meshtune": {k: v for k, v in what.tags.items() if v}},
                tags=[what.tags["kind"]],
                dir=folder,
                settings=settings,
            )
            made.summary.update({**what.metrics, "duration_s": what.ended_t - what.started_t})
            made.finish(exit_code=0 if trial.ok else 1)
    except (wandb.errors.Error, OSError) as error:
        raise TrackerError(
            f"{first_line(error)}; `wandb login` gives access, WANDB_MODE=offline keeps all on disk"
        ) from None
    finally:
        wandb.teardown()  # its service writes in the background: until then not all is on disk
    return len(trials)
