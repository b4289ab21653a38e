"""The sections on what drives the objective, and failure."""

from __future__ import annotations

import math
from typing import Any

from analysis import units
from analysis.prediction.held_out import DOUBTFUL, CrossValidation
from analysis.report.figures import effects
from analysis.report.interactions import NAMED
from analysis.report.outcomes import failures
from analysis.report.section import Content
from analysis.report.sensitivity import LOW_R2
from foundation.quantities import counted, percent

LED_BY = 3  # parameters named beside the best configuration


def objective_drivers(content: Content) -> str:
    """Drivers by the cost model over the space, then by the trials alone if a forest fits them."""
    return content.html(
        "drivers.html",
        check=_check(content.validation),
        doubtful=doubt(content.validation),
        effect=units.unit_or_name(content.run.objective_key),
        explored=sum(trial.explores for trial in content.run.trials.values()),
        interactions=content.interactions[:NAMED],
    )


def objective_data(content: Content) -> dict[str, Any]:
    """Effects by model and by trials, and how they depend on each other."""
    model, (trials, _) = content.by_model, content.by_trials
    accounts = {"model": model.found if model else None, "trials": trials}
    data: dict[str, Any] = {
        f"effects-{of}": effects(found) for of, found in accounts.items() if found
    }
    return data | {"dependence": content.dependence}


def mattered_most(content: Content) -> tuple[list[tuple[str, float]], str]:
    """The leading parameters with their mean |SHAP|, and its unit; empty if neither is reliable:
    a model that ranks held-out trials well, else a forest that predicts unseen trials well.
    """
    checked = content.validation is not None and math.isfinite(content.validation.rank_correlation)
    found = content.leading
    if content.by_model and (not checked or doubt(content.validation)):
        found = None
    if found is content.by_trials[0] and found is not None and found.oob_score < LOW_R2:
        found = None
    unit = units.unit_or_name(content.run.objective_key)
    first = [] if found is None else list(found.mean_abs.head(LED_BY).items())
    return [(str(name), mean) for name, mean in first if mean > 0], unit


def failure_drivers(content: Content) -> str:
    """The kinds of failure, what makes them likely, and which configurations fit."""
    return content.html("failures.html", failures=failures(content.run))


def failure_data(content: Content) -> dict[str, Any]:
    found, _ = content.by_failures
    drawn = {"effects-failure": effects(found)} if found else {}
    return drawn | {"border": content.border}


def doubt(validation: CrossValidation | None) -> str:
    """Why the model is doubtful; empty if it is not."""
    if validation is None or not validation.doubtful:
        return ""
    if validation.blind:
        failed = int(validation.out_of_memory.sum())
        missed = failed - validation.foreseen
        return f"it did not predict {missed} of {failed} out-of-memory failures"
    error = validation.median_errors["time"]
    if validation.disordered and error <= DOUBTFUL:
        rank = validation.rank_correlation
        return f"rank correlation {rank:.2f} on held-out trials"
    return f"median error of step times {percent(error)}"


def _check(validation: CrossValidation | None) -> str:
    """The model's accuracy on held-out trials; empty if unknown."""
    if validation is None:
        return ""
    error, rank = validation.median_errors["time"], validation.rank_correlation
    if error != error:
        return ""
    ranked = "" if rank != rank else f", rank correlation {rank:.2f}"
    trials = counted(int((validation.measured_s > 0).sum()), "held-out trial")
    return f"median error {percent(error)} on {trials}{ranked}"
