"""The sections on what drives the objective, and failure."""

from __future__ import annotations

from analysis import units
from analysis.prediction.held_out import DOUBTFUL, CrossValidation
from analysis.report.figures import MAX_PARAMETERS, effects
from analysis.report.forests import Sensitivity
from analysis.report.interactions import NAMED, dependence, interactions, memory_border
from analysis.report.section import Content
from analysis.report.sensitivity import failure_sensitivity
from analysis.report.trajectory import failures
from foundation.quantities import counted, percent

LED_BY = 3  # parameters that the page's answer names


def objective_drivers(content: Content) -> str:
    """By the cost model over the space, then by the trials alone where that carries."""
    unit = _unit(content)
    model, (found, refusal) = content.by_model, content.by_trials
    if model:
        _put(content, model.found, "model")
    if found:
        _put(content, found, "trials")
    leading = model.found if model else found
    pairs = interactions(leading)[:NAMED] if leading else []
    if leading and len(leading.mean_abs) > 1:
        content.data["dependence"] = dependence(leading)
    return content.html(
        "drivers.html",
        model=model,
        check=_check(content),
        doubtful=doubt(content.validation),
        sensitivity=found,
        refusal=refusal,
        effect=unit,
        explored=sum(trial.explores for trial in content.run.trials.values()),
        interactions=pairs,
        leading=list(content.data.get("dependence", {})),
    )


def mattered_most(content: Content) -> tuple[list[tuple[str, float]], str]:
    """The first parameters with their mean |SHAP|, and its unit; none where nobody can say."""
    found = content.by_model.found if content.by_model else content.by_trials[0]
    first = [] if found is None else list(found.mean_abs.head(LED_BY).items())
    return [(str(name), mean) for name, mean in first if mean > 0], _unit(content)


def failure_drivers(content: Content) -> str:
    """The kinds of failures, what made them more likely, and where memory ends."""
    found, refusal = content.account(failure_sensitivity)
    if found:
        _put(content, found, "failure")
    border = memory_border(content.outlook) if content.outlook else None
    if border:
        content.data["border"] = border
    rows = failures(content.run).to_dict("records")
    return content.html(
        "failures.html", failures=rows, sensitivity=found, refusal=refusal, border=border
    )


def _put(content: Content, found: Sensitivity, of: str) -> None:
    content.data["effects"][of] = effects(found, MAX_PARAMETERS)


def _unit(content: Content) -> str:
    return units.unit(content.run.objective_key) or content.run.objective_key


def _check(content: Content) -> str:
    """How well the model foretells trials that it has not seen."""
    validation = content.validation
    if validation is None:
        return ""
    error, rank = validation.median_errors["time"], validation.rank_correlation
    if error != error:
        return ""
    ranked = "" if rank != rank else f", rank correlation {rank:.2f}"
    count = counted(int((validation.measured_s > 0).sum()), "trial")
    return f"{count}, each predicted unseen, with a median error of {percent(error)}{ranked}"


def doubt(validation: CrossValidation | None) -> str:
    """Why the model is not to be trusted; nothing where it is."""
    if validation is None or not validation.doubtful:
        return ""
    if validation.blind:
        failed = int(validation.out_of_memory.sum())
        return f"{failed - validation.foreseen} of {failed} out-of-memory failures came unforeseen"
    error = validation.median_errors["time"]
    if validation.disordered and error <= DOUBTFUL:
        rank = validation.rank_correlation
        return f"rank correlation {rank:.2f} with trials that it had not seen"
    return f"median error of step times {percent(error)}"
