"""The sections on what drives the objective, and failure."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from analysis import units
from analysis.prediction.held_out import CrossValidation
from analysis.report import plots
from analysis.report.figures import effects
from analysis.report.forests import NotEnough, Sensitivity
from analysis.report.model_sensitivity import ModelSensitivity, model_sensitivity
from analysis.report.section import Content
from analysis.report.sensitivity import LOW_R2, failure_sensitivity, objective_sensitivity
from analysis.report.trajectory import failures
from analysis.units import percent

Account = tuple[Sensitivity | None, str]
"""A sensitivity, or the reason why there is none."""


def objective_drivers(content: Content) -> str:
    """By the cost model over the space, then by the trials alone where that carries."""
    unit = units.unit(content.run.objective_key) or content.run.objective_key
    model = _of_model(content)
    found, refusal = _of_trials(content, objective_sensitivity)
    if model and found and found.oob_score < LOW_R2:
        refusal = (
            f"A forest on the {found.total} successes explains too little of them to be shown "
            f"(out-of-bag R² = {found.oob_score:.2f}); trials that are more and wider apart would."
        )
        found = None
    if model:
        _draw(content, model.found, "model", "model_shap.png", unit)
    if found:
        _draw(content, found, "trials", "objective_shap.png", unit)
    return content.html(
        "drivers.html",
        model=model,
        check=_check(content),
        doubtful=doubt(content.validation),
        sensitivity=found,
        refusal=refusal,
        effect=unit,
    )


def failure_drivers(content: Content) -> str:
    """The kinds of failures, and what made them more likely."""
    found, refusal = _of_trials(content, failure_sensitivity)
    if found:
        _draw(content, found, "failure", "failure_shap.png", "probability of failing")
    rows = failures(content.run).to_dict("records")
    return content.html("failures.html", failures=rows, sensitivity=found, refusal=refusal)


def _of_trials(content: Content, analyse: Callable[[pd.DataFrame], Sensitivity]) -> Account:
    try:
        return analyse(content.frame), ""
    except NotEnough as reason:
        return None, str(reason)


def _of_model(content: Content) -> ModelSensitivity | None:
    if content.pricing is None:
        return None
    try:
        return model_sensitivity(content.run, content.pricing)
    except NotEnough:
        return None


def _draw(content: Content, found: Sensitivity, of: str, picture: str, effect: str) -> None:
    """Into the page, and as a picture beside it."""
    content.data["effects"][of] = effects(found, plots.MAX_PARAMETERS)
    content.image(picture, plots.sensitivity_figure(found, effect))


def _check(content: Content) -> str:
    """How well the model foretells trials that it has not seen."""
    validation = content.validation
    if validation is None:
        return ""
    error, rank = validation.median_errors["time"], validation.rank_correlation
    if error != error:
        return ""
    ranked = "" if rank != rank else f", rank correlation {rank:.2f}"
    count = units.counted(int((validation.measured_s > 0).sum()), "trial")
    return f"{count}, each predicted unseen, with a median error of {percent(error)}{ranked}"


def doubt(validation: CrossValidation | None) -> str:
    """Why the model is not to be trusted; nothing where it is."""
    if validation is None or not validation.doubtful:
        return ""
    failed = int(validation.out_of_memory.sum())
    if validation.foreseen < failed / 2:
        return f"{failed - validation.foreseen} of {failed} out-of-memory failures came unforeseen"
    return f"median error of step times {percent(validation.median_errors['time'])}"
