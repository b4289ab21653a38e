"""Whether the cost model may choose, judged by its predictions of this run's trials.

The journal keeps the prediction before each trial. Errors of these predictions show how far off the
model may be elsewhere; residuals of trials that it was fitted to do not.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from analysis.cost.constants import EDGE
from analysis.cost.model import PRIOR_LOG_SD
from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.pricing import Pricing
from analysis.prediction.residual import DISTURBED_SHARE, MEAN_SLOWDOWN, PRIOR_TRIALS
from analysis.run.fold import Run
from analysis.run.trial import Trial
from trainer.plan.jobs import Array

PRIOR_LOG_ODDS = 5.0  # log odds that the model is right, before any trial
ALTERNATIVE_WIDTH = 5.0  # range in logarithms of objectives if the model is wrong
PROBES = 3  # successes chosen without the model before a distrusted one gets another chance
MIN_RANK_CORRELATION = 0.5  # of its predictions, to get that chance
WIDEST = 2.0  # largest deviation of the residual, in deviations before any evidence
NEAR = PRIOR_LOG_SD  # error in logarithms up to which a prediction is good
BEYOND = WIDEST * PRIOR_LOG_SD  # error that no deviation of the posterior covers
SURPRISED = 5  # latest trials of which none may be faster than expected
MAX_UNFORESEEN_OOMS = 5  # in a row, of trials expected to fit


def foretold(run: Run) -> list[Trial]:
    """Trials that ran and whose objective was predicted.

    Explorations are left out: the model knows least about them, and they are not chosen for their
    predictions.
    """
    return [
        t
        for t in run.trials.values()
        if t.ok and t.positive and t.expected.get("objective") and not t.explores
    ]


def errors(run: Run) -> Array:
    """Logarithms of measured over predicted objectives, of :func:`foretold` trials."""
    return np.log([(t.objective or 1.0) / t.expected["objective"] for t in foretold(run)])


def residual_log_sd(run: Run, before: float) -> float:
    """Standard deviation of the model's log error, from ``before`` this run and its errors.

    ``before`` counts as PRIOR_TRIALS trials. The run's errors count by their median, so that
    disturbed trials do not widen it.
    """
    off = np.abs(errors(run))
    spread = min(1.4826 * float(np.median(off)), WIDEST * PRIOR_LOG_SD) if len(off) else 0.0
    known, new = PRIOR_TRIALS * before**2, len(off) * spread**2
    return float(np.sqrt((known + new) / (PRIOR_TRIALS + len(off))))


def trusted(run: Run, pricing: Pricing | None = None) -> bool:
    """Whether the model may keep choosing trials; without ``pricing``, keep saying what fits.

    Judged by the predictions in the journal. If they are far off, trials are chosen without the
    model for a while. If it ranks those well, it was right and the machine disturbs most trials.
    """
    failures = 0
    for trial in run.trials.values():
        if trial.explores:
            continue  # chosen where the model knows least
        if trial.ok:
            failures = 0
        elif trial.kind == "oom" and trial.expected.get("fits", 0.0) > 0.9:
            failures += 1
            if failures >= MAX_UNFORESEEN_OOMS:
                return False
    if pricing is None or PRIOR_LOG_ODDS + log_odds(run) > 0:
        return True
    successes = [t for t in run.trials.values() if t.ok and t.positive]
    if sum("objective" not in t.expected for t in successes) < PROBES:
        return False
    predicted = np.log(pricing.promise(pricing.predict([t.config for t in successes])))
    measured = np.log([t.objective for t in successes if t.objective])
    if not pricing.space.objective.maximize:
        measured = -measured
    if np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return False  # there is nothing to rank
    from scipy.stats import spearmanr  # slow to import, and seldom needed

    return bool(spearmanr(predicted, measured).statistic > MIN_RANK_CORRELATION)


def log_odds(run: Run) -> float:
    """Log Bayes factor of the model against an uninformed alternative, over all its predictions.

    The alternative expects any objective, or one like those before: a model whose choices all
    disappoint alike predicts worse than that. A prediction within NEAR has to beat the former only.
    """
    seen: list[float] = []
    total = 0.0
    for t in run.trials.values():
        if t.explores or not (t.ok and t.positive and t.objective):
            continue
        log, expected = math.log(t.objective), t.expected.get("objective")
        if expected:
            other = 1 / ALTERNATIVE_WIDTH
            if len(seen) > 1 and abs(log - math.log(expected)) > NEAR:
                other = (other + _density_by_others(log, seen)) / 2
            low, high = t.expected["low"], t.expected["high"]
            total += _log_likelihood(t.objective, expected, low, high) - math.log(other)
        seen.append(log)
    return total


def _density_by_others(log: float, seen: list[float]) -> float:
    """Density of a log objective that is distributed like those of other trials."""
    log_sd = max(float(np.std(seen)), NEAR)
    off = (log - float(np.mean(seen))) / log_sd
    return math.exp(-0.5 * off**2) / (log_sd * math.sqrt(2 * math.pi))


def foresees(run: Run) -> bool:
    """Whether the model predicts this run's trials, so that its expected gains count.

    Its median error must not exceed that of the mean of the other trials (or NEAR, for trials of
    equal speed), nor BEYOND. None of the latest trials may be faster than its interval: a
    disturbance only slows a run down, so the model may have overlooked more.
    """
    predicted = foretold(run)
    if len(predicted) < 3:
        return False
    logs = np.log([t.objective or 1.0 for t in predicted])
    others = (logs - logs.mean()) * len(logs) / (len(logs) - 1)
    by_constant = float(np.median(np.abs(others)))
    if float(np.median(np.abs(errors(run)))) > min(max(by_constant, NEAR), BEYOND):
        return False
    latest = [t for t in run.trials.values() if t.ended and not t.explores][-SURPRISED:]
    recent = [t for t in latest if t.ok and t.objective and t.expected.get("objective")]
    if run.maximize:
        return not any((t.objective or 0.0) > t.expected["high"] for t in recent)
    return not any((t.objective or np.inf) < t.expected["low"] for t in recent)


@lru_cache(maxsize=2**16)  # every proposal asks for every trial so far
def _log_likelihood(objective: float, expected: float, low: float, high: float) -> float:
    """Log density of an objective's logarithm if the model is right.

    Then the objective is near the prediction, or the run was disturbed and is far off, to either
    side: a run much faster than expected is as strong evidence against the model. The distance is
    measured by the interval's edge on its side, so that a slow run is no evidence against the model
    if the interval covers it for possible disturbances.
    """
    edge = abs(math.log((high if objective > expected else low) / expected))
    log_sd = edge / EDGE + NOISE_LOG_SD
    off = abs(math.log(objective / expected)) / log_sd
    within = math.log((1 - DISTURBED_SHARE) / math.sqrt(2 * math.pi)) - 0.5 * off**2
    disturbed = math.log(DISTURBED_SHARE / MEAN_SLOWDOWN) - off / MEAN_SLOWDOWN
    return float(np.logaddexp(within, disturbed)) - math.log(log_sd)
