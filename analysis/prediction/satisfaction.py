"""The probability that a candidate satisfies the bounds on measured values.

A Gaussian process over the trials' measurements for each bound: around the cost model's prediction
where it has one (peak memory, speeds, energy), else around the mean of what was measured.
Multiplying the expected gain by the probability of feasibility: Gardner et al. 2014; Gelbart et al.
2014.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.cost.model import PRIOR_LOG_SD, Prediction
from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.pricing import Pricing
from analysis.prediction.residual import EFFECT_LOG_SD, PRIOR_TRIALS, ResidualProcess
from analysis.run.trial import Trial
from foundation.bounds import Bound
from trainer.plan.jobs import Array

MEASURED = 2  # measurements of an unpriced metric from which its spread is known
NARROWEST = 1e-6  # least deviation of a metric, as a share of its size


def satisfaction(
    pricing: Pricing,
    prediction: Prediction,
    features: Array,
    trials: Sequence[Trial] = (),
    measured_at: Array | None = None,
    unpriced: int = 0,
) -> Array:
    """Probability that each candidate of ``prediction`` satisfies all bounds; shape (m,).

    Args:
        features: of the candidates; shape (m, k).
        trials: that succeeded; none: the probability before any trial.
        measured_at: features of the trials; shape (n, k).
        unpriced: number of last columns of features that encode unpriced parameters.
    """
    from scipy.special import ndtr  # slow to import

    chances = np.ones(len(features))
    at = features[:0] if measured_at is None else measured_at
    for bound in pricing.space.subject_to:
        rows = [row for row, trial in enumerate(trials) if bound.key in trial.bounded]
        known = _errors(bound, pricing, prediction, [trials[row] for row in rows])
        if known is None:
            continue
        margin, errors, spread = known
        process = ResidualProcess(at[rows], errors, spread, NOISE_LOG_SD, unpriced, robust=False)
        shift, deviation = process.at(features)
        left = (margin - shift) if bound.upper else -(margin - shift)
        chances = chances * ndtr(left / np.hypot(deviation, NOISE_LOG_SD))
    return chances


def _errors(
    bound: Bound, pricing: Pricing, prediction: Prediction, trials: Sequence[Trial]
) -> tuple[Array | float, Array, float] | None:
    """How far candidates are expected below a bound, the trials' errors, and their prior deviation.

    Logarithms if the cost model predicts the metric; else in units of what was measured, scaled so
    that an unpriced parameter may explain as much as all others together. None if too little is
    known.
    """
    measured = np.array([t.bounded[bound.key] for t in trials])
    priced = _priced(bound.key, pricing, prediction)
    if priced is not None and bound.value > 0 and (measured > 0).all():
        errors = np.zeros(0)
        if trials:
            jobs = pricing.jobs_of([t.config for t in trials])
            own = _priced(bound.key, pricing, prediction.model.predict(jobs))
            assert own is not None
            errors = np.log(measured) - np.log(own)
        squares = PRIOR_TRIALS * PRIOR_LOG_SD**2 + np.square(errors).sum()
        spread = float(np.sqrt(squares / (PRIOR_TRIALS + len(errors))))
        return float(np.log(bound.value)) - np.log(priced), errors, spread
    if len(measured) < MEASURED:
        return None
    mean, smallest = float(measured.mean()), NARROWEST * max(abs(bound.value), NARROWEST)
    unit = max(float(measured.std(ddof=1)), smallest) / EFFECT_LOG_SD
    return (bound.value - mean) / unit, (measured - mean) / unit, EFFECT_LOG_SD


def _priced(key: str, pricing: Pricing, prediction: Prediction) -> Array | None:
    """The metric as the trainer would report it; None if the model does not predict it."""
    if key == "peak_memory_bytes":
        return prediction.model.reported_peak_bytes(prediction.jobs)
    return pricing.figure(key, prediction)
