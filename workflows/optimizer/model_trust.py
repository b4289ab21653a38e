"""Whether the cost model may choose: by what it foretold of the trials, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from analysis.cost.constants import EDGE, Array
from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run
from analysis.run.trial import Trial
from workflows.optimizer.gaussian_process import DISTURBED, NOISE_LOG_SD, SLOWED

FAITH = 5.0  # logarithm of the odds that the model is right, before any trial
IGNORANCE = 5.0  # width in logarithms over which figures lie if it is not
PROBES = 3  # successes that others chose, before a model in doubt is heard again
RANKED = 0.5  # rank correlation from which it is
DOUBT_FAILURES = 5  # in a row, of trials expected to fit


def believed(run: Run, pricing: Pricing) -> bool:
    """Whether the model behind these prices may go on choosing.

    It is judged by the predictions that stood in the journal before the trials ran. Where they
    are far off, others choose for a while: a machine that disturbs most trials is told from a
    model that is wrong by whether it ranks theirs, too.
    """
    failures = 0
    for trial in run.trials.values():
        if trial.ok:
            failures = 0
        elif trial.kind == "oom" and trial.expected.get("fits", 0.0) > 0.9:
            failures += 1
            if failures >= DOUBT_FAILURES:
                return False
    if FAITH + odds(run) > 0:
        return True
    successes = [t for t in run.trials.values() if t.ok and positive(t)]
    if sum(not t.expected for t in successes) < PROBES:
        return False
    promise = np.log(pricing.promise(pricing.predict([t.config for t in successes])))
    measured = np.log([t.objective for t in successes if t.objective])
    if not pricing.space.objective.maximize:
        measured = -measured
    return _rank_correlation(promise, measured) > RANKED


def odds(run: Run) -> float:
    """Logarithm of how much more probable the model has become by all that it foretold."""
    return sum(
        _speaks_for_model(t.objective, t.expected)
        for t in run.trials.values()
        if t.ok and t.objective and positive(t) and t.expected.get("objective")
    )


def positive(trial: Trial) -> bool:
    """Whether its objectives have a logarithm; others say nothing of a model that predicts one."""
    return (trial.objective or 0.0) > 0 and all(x > 0 for x in trial.objectives.values())


def _speaks_for_model(objective: float, expected: Mapping[str, float]) -> float:
    """Logarithm of how much more probable a figure is if the model is right than if it is not.

    If it is right, the figure is within the interval, or the run was disturbed: far off either way
    (a trial that is faster than anything expected says no less that the model is not right).
    """
    log_sd = np.log(expected["high"] / expected["low"]) / (2 * EDGE) + NOISE_LOG_SD
    off = abs(np.log(objective / expected["objective"])) / log_sd
    within = (1 - DISTURBED) * np.exp(-0.5 * off**2) / np.sqrt(2 * np.pi)
    disturbed = DISTURBED / SLOWED * np.exp(-off / SLOWED)
    return float(np.log((within + disturbed) / log_sd * IGNORANCE))


def _rank_correlation(a: Array, b: Array) -> float:
    """Spearman's; ties are broken by the order of the trials."""
    ranks = [np.argsort(np.argsort(x, kind="stable"), kind="stable") for x in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
