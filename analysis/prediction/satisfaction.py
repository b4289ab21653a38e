"""The probability that a candidate satisfies the bounds on measured values.

A Gaussian process over the trials' measurements for each bound: around the cost model's prediction
where it has one (peak memory, speeds, energy), else around the mean of what was measured.
Multiplying the expected gain by the probability of feasibility: Gardner et al. 2014; Gelbart et al.
2014.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.cost.model import PRIOR_LOG_SD, CostModel, Prediction
from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.pricing import Pricing
from analysis.prediction.residual import EFFECT_LOG_SD, PRIOR_TRIALS, ResidualProcess
from analysis.run.trial import Trial
from foundation.bounds import Bound
from trainer.plan.jobs import Array

MEASURED = 2  # measurements of an unpriced metric from which its spread is known
NARROWEST = 1e-6  # least deviation of a metric, as a share of its size


@dataclass(frozen=True)
class Satisfaction:
    """Judges candidates by the bounds of a space."""

    pricing: Pricing
    model: CostModel
    trials: Sequence[Trial]  # that succeeded
    features_of: Callable[[Sequence[Trial]], Array]  # of trials; shape (n, k)
    unpriced: int  # number of last columns that encode unpriced parameters

    @classmethod
    def before_trials(cls, pricing: Pricing, prediction: Prediction) -> Array:
        """Probability that candidates satisfy the bounds, before any trial; shape (m,)."""
        nowhere = np.zeros((len(prediction.fits), 1))
        return cls(pricing, pricing.model, (), lambda _: nowhere[:0], 0).probability(
            prediction, nowhere
        )

    def probability(self, prediction: Prediction, features: Array) -> Array:
        """Probability that each candidate satisfies all bounds; shape (m,)."""
        chances = np.ones(len(features))
        for bound in self.pricing.space.subject_to:
            chances = chances * self._each(bound, prediction, features)
        return chances

    def _each(self, bound: Bound, prediction: Prediction, features: Array) -> Array:
        from scipy.special import ndtr  # slow to import

        trials = [t for t in self.trials if bound.key in t.bounded]
        measured = np.array([t.bounded[bound.key] for t in trials])
        priced = self._priced(bound.key, prediction)
        expected: Array | float
        if priced is not None and bound.value > 0 and (measured > 0).all():
            limit, expected = float(np.log(bound.value)), np.log(priced)
            left, noise = np.zeros(0), NOISE_LOG_SD
            if trials:
                jobs = self.pricing.jobs_of([t.config for t in trials])
                own = self._priced(bound.key, self.model.predict(jobs))
                assert own is not None
                left = np.log(measured) - np.log(own)
            squares = PRIOR_TRIALS * PRIOR_LOG_SD**2 + np.square(left).sum()
            spread = float(np.sqrt(squares / (PRIOR_TRIALS + len(left))))
        elif len(measured) >= MEASURED:
            # Scaled so that an unpriced parameter may explain as much as all others together.
            mean, smallest = float(measured.mean()), NARROWEST * max(abs(bound.value), NARROWEST)
            unit = max(float(measured.std(ddof=1)), smallest) / EFFECT_LOG_SD
            limit, expected, left = (bound.value - mean) / unit, 0.0, (measured - mean) / unit
            spread, noise = EFFECT_LOG_SD, NOISE_LOG_SD
        else:
            return np.ones(len(features))
        process = ResidualProcess(
            self.features_of(trials), left, spread, noise, self.unpriced, robust=False
        )
        shift, deviation = process.at(features)
        margin = limit - expected - shift
        return np.asarray(ndtr((margin if bound.upper else -margin) / np.hypot(deviation, noise)))

    def _priced(self, key: str, prediction: Prediction) -> Array | None:
        """The metric as the trainer would report it; None if the model does not predict it."""
        if key == "peak_memory_bytes":
            return self.model.reported_peak_bytes(prediction.jobs)
        return self.pricing.figure(key, prediction)
