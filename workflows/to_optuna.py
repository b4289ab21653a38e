"""``meshtune to-optuna``: a run as an Optuna study, for its dashboard and its analysis."""

from __future__ import annotations

import warnings
from datetime import datetime
from typing import TYPE_CHECKING, Any

from analysis import Run, RunFolder, Trial
from foundation.messages import first_line
from search_spaces import Parameter
from workflows.optimizer.optuna import CONSTRAINTS, distribution, excesses, imported
from workflows.trackers import times

if TYPE_CHECKING:
    import optuna


def to_optuna(run: Run, storage: str, name: str) -> tuple[int, int]:
    """Add a run's trials to a study, which is made unless it exists.

    Returns the number of added trials, and of those that were there already, which stay.

    Raises PolicyError if Optuna is not installed, ValueError if the storage is unusable, or the
    study is another run's.
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
    """Copy the run; errors are Optuna's own."""
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
    identity = {  # trials of other runs have the same numbers
        "fingerprint": run.fingerprint,
        "objectives": [key for key, _ in goals],
        "began": run.opened_t[0] if run.opened_t else None,
    }
    if any(study.user_attrs.get(key, value) != value for key, value in identity.items()):
        raise ValueError(f"the study {name!r} there is of another run; choose another --name")
    with warnings.catch_warnings(action="ignore", category=module.exceptions.ExperimentalWarning):
        study.set_metric_names([key for key, _ in goals])
    for key, value in {"space": run.space, "launcher": run.launcher, **identity}.items():
        study.set_user_attr(key, value)
    known = {trial.user_attrs.get("trial") for trial in study.trials}
    trials = run.ended
    new = [trial for trial in trials if trial.number not in known]
    for trial in new:
        study.add_trial(_frozen(module, run, trial, dict(space.parameters)))
    return len(new), len(trials) - len(new)


def _frozen(
    module: Any, run: Run, trial: Trial, parameters: dict[str, Parameter]
) -> optuna.trial.FrozenTrial:
    """A trial as Optuna keeps it: failed ones without a value, repeats as their median."""
    config = {k: v for k, v in trial.config.items() if v is not None and k in parameters}
    values = [trial.objectives.get(key, trial.objective) for key, _ in run.goals]
    complete = trial.ok and all(value is not None for value in values)
    state = module.trial.TrialState.COMPLETE if complete else module.trial.TrialState.FAIL
    started_t, ended_t = times(trial)
    found: optuna.trial.FrozenTrial = module.trial.create_trial(
        state=state,
        values=values if complete else None,
        params=config,
        system_attrs={CONSTRAINTS: excesses(trial, run.subject_to)} if trial.bounded else {},
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
    found.datetime_complete = datetime.fromtimestamp(ended_t)
    return found
