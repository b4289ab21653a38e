"""``meshtune to-optuna``: a run as a study of Optuna's, for its dashboard and its analysis."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import TYPE_CHECKING, Any

from analysis import Run, RunFolder, Trial
from foundation.messages import first_line
from search_spaces import Parameter
from workflows.optimizer.optuna import distribution, imported

if TYPE_CHECKING:
    import optuna


def to_optuna(run: Run, storage: str, name: str) -> tuple[int, int]:
    """Add a run's trials to a study; those that it has already are left as they are.

    Args:
        run: to be told.
        storage: of Optuna's, such as ``sqlite:///runs.db``.
        name: of the study, which is made if need be.

    Returns:
        How many were added, and how many the study had.

    Raises:
        PolicyError: if Optuna is not installed.
        ValueError: if there can be no such storage, or its study is of another run.
    """
    optuna = imported()
    from sqlalchemy.exc import SQLAlchemyError  # Optuna's

    try:
        return _copied(optuna, run, storage, name)
    except (optuna.exceptions.OptunaError, SQLAlchemyError, ImportError, RuntimeError) as error:
        raise ValueError(
            f"{first_line(error.__cause__ or error)}; try again when nothing else writes to it, or "
            "name another storage"
        ) from None


def _copied(module: Any, run: Run, storage: str, name: str) -> tuple[int, int]:
    """As :func:`to_optuna`, with Optuna's own errors."""
    space = RunFolder(run.directory).frozen_space()
    goals = run.goals
    study = module.create_study(
        storage=storage,
        study_name=name,
        load_if_exists=True,
        directions=["maximize" if up else "minimize" for _, up in goals],
    )
    if [d.name == "MAXIMIZE" for d in study.directions] != [up for _, up in goals]:
        raise ValueError(f"the study {name!r} there has other objectives; choose another --name")
    _refuse_another(study, run, name)
    with warnings.catch_warnings(action="ignore", category=module.exceptions.ExperimentalWarning):
        study.set_metric_names([key for key, _ in goals])
    study.set_user_attr("space", run.space)
    study.set_user_attr("launcher", run.launcher)
    for key, value in _identity(run).items():
        study.set_user_attr(key, value)
    known = {trial.user_attrs.get("trial") for trial in study.trials}
    ended = [t for _, t in sorted(run.trials.items()) if t.ended]
    new = [trial for trial in ended if trial.number not in known]
    for trial in new:
        study.add_trial(_frozen(module, run, trial, dict(space.parameters)))
    return len(new), len(ended) - len(new)


def _identity(run: Run) -> dict[str, Any]:
    """What a study keeps of the run that it is of: trials of others have the same numbers."""
    return {
        "fingerprint": run.fingerprint,
        "objectives": [key for key, _ in run.goals],
        "began": run.opened_t[0] if run.opened_t else None,
    }


def _refuse_another(study: optuna.Study, run: Run, name: str) -> None:
    """Raise if the study is of another run; what it does not say is taken for granted."""
    for key, value in _identity(run).items():
        if study.user_attrs.get(key, value) != value:
            raise ValueError(f"the study {name!r} there is of another run; choose another --name")


def _frozen(
    module: Any, run: Run, trial: Trial, parameters: dict[str, Parameter]
) -> optuna.trial.FrozenTrial:
    """A trial as Optuna keeps it: failed ones without a value, repeats as their median."""
    config = {k: v for k, v in trial.config.items() if v is not None and k in parameters}
    values = [trial.objectives.get(key, trial.objective) for key, _ in run.goals]
    complete = trial.ok and all(value is not None for value in values)
    state = module.trial.TrialState.COMPLETE if complete else module.trial.TrialState.FAIL
    started_t = trial.attempts[0].started_t if trial.attempts else trial.proposed_t
    found: optuna.trial.FrozenTrial = module.trial.create_trial(
        state=state,
        values=values if complete else None,
        params=config,
        distributions={name: distribution(parameters[name]) for name in config},
        user_attrs={
            "trial": trial.number,
            "kind": trial.kind,
            "by": trial.by,
            "why": trial.why,
            "measurements": len(trial.measurements),
            "stopped early": trial.stopped_early,
            "node-hours": trial.node_seconds / 3600,
            **({"message": trial.message} if trial.message else {}),
            **{f"expected {key}": value for key, value in trial.expected.items()},
        },
    )
    found.datetime_start = datetime.fromtimestamp(started_t)
    found.datetime_complete = datetime.fromtimestamp(trial.ended_t or started_t)
    return found
