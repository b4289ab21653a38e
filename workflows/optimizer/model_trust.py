"""Whether the cost model may choose: by what it foretold of the trials, and what came of them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from analysis import (
    DISTURBED_SHARE,
    EDGE,
    MEAN_SLOWDOWN,
    NOISE_LOG_SD,
    PRIOR_LOG_SD,
    Pricing,
    Run,
    errors,
    foretold,
    positive,
)

PRIOR_LOG_ODDS = 5.0  # logarithm of the odds that the model is right, before any trial
ALTERNATIVE_WIDTH = 5.0  # width in logarithms over which figures lie if it is not
PROBES = 3  # successes that others chose, before a model in doubt is heard again
MIN_RANK_CORRELATION = 0.5  # rank correlation from which it is
NEAR = PRIOR_LOG_SD  # logarithms by which a prediction may be off and still be good
SURPRISED = 5  # latest trials of which none may be faster than expected, to say what is left
MAX_UNFORESEEN_OOMS = 5  # in a row, of trials expected to fit


def trusted(run: Run, pricing: Pricing) -> bool:
    """Whether the model behind these prices may go on choosing.

    It is judged by the predictions that stood in the journal before the trials ran. Where they
    are far off, others choose for a while: a machine that disturbs most trials is told from a
    model that is wrong by whether it ranks theirs, too.
    """
    failures = 0
    for trial in run.trials.values():
        if trial.explores:
            continue  # where the model knows least it is not to be judged
        if trial.ok:
            failures = 0
        elif trial.kind == "oom" and trial.expected.get("fits", 0.0) > 0.9:
            failures += 1
            if failures >= MAX_UNFORESEEN_OOMS:
                return False
    if PRIOR_LOG_ODDS + log_odds(run) > 0:
        return True
    successes = [t for t in run.trials.values() if t.ok and positive(t)]
    if sum(not t.expected for t in successes) < PROBES:
        return False
    promise = np.log(pricing.promise(pricing.predict([t.config for t in successes])))
    merit = np.log([t.objective for t in successes if t.objective])
    if not pricing.space.objective.maximize:
        merit = -merit
    if np.ptp(promise) == 0 or np.ptp(merit) == 0:
        return False  # there is nothing to rank
    from scipy.stats import spearmanr  # slow to import, and seldom needed

    return bool(spearmanr(promise, merit).statistic > MIN_RANK_CORRELATION)


def log_odds(run: Run) -> float:
    """Logarithm of how much more probable the model has become by all that it foretold."""
    return sum(
        _log_likelihood_ratio(
            t.objective, t.expected["objective"], t.expected["low"], t.expected["high"]
        )
        for t in foretold(run)
        if t.objective
    )


def foresees(run: Run) -> bool:
    """Whether the model has foretold this run's trials better than their own mean does.

    Each trial is set against the mean of all others. Trials of equal speed tell no model from a
    constant: there it is enough to be near.
    """
    told = foretold(run)
    if len(told) < 3:
        return False
    logs = np.log([t.objective or 1.0 for t in told])
    others = (logs - logs.mean()) * len(logs) / (len(logs) - 1)
    by_constant = float(np.median(np.abs(others)))
    return float(np.median(np.abs(errors(run)))) <= max(by_constant, NEAR)


def surprised(run: Run, maximize: bool) -> bool:
    """Whether one of the latest trials was better than the interval that it was expected in.

    Nothing makes a run faster than its configuration is, so there may be more that the model has
    overlooked. Slower runs may have been disturbed.
    """
    latest = [t for t in run.trials.values() if t.ended and not t.explores][-SURPRISED:]
    recent = [t for t in latest if t.ok and t.objective and t.expected.get("objective")]
    if maximize:
        return any((t.objective or 0.0) > t.expected["high"] for t in recent)
    return any((t.objective or np.inf) < t.expected["low"] for t in recent)


@lru_cache(maxsize=2**16)  # every proposal asks for every trial so far
def _log_likelihood_ratio(objective: float, expected: float, low: float, high: float) -> float:
    """Logarithm of how much more probable a figure is if the model is right than if it is not.

    If it is right, the figure is within the interval, or the run was disturbed: far off either way
    (a trial that is faster than anything expected says no less that the model is not right).
    """
    edge = min(
        math.log(high / expected), math.log(expected / low)
    )  # the other is of disturbed runs
    log_sd = edge / EDGE + NOISE_LOG_SD
    off = abs(math.log(objective / expected)) / log_sd
    within = math.log((1 - DISTURBED_SHARE) / math.sqrt(2 * math.pi)) - 0.5 * off**2
    disturbed = math.log(DISTURBED_SHARE / MEAN_SLOWDOWN) - off / MEAN_SLOWDOWN
    return float(np.logaddexp(within, disturbed)) + math.log(ALTERNATIVE_WIDTH / log_sd)
