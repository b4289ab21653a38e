"""The posterior over configurations: calibrated cost model, residual and probability to run.

The cost model, calibrated with the trials, predicts every configuration. A Gaussian process over
the trials corrects the prediction and says how far it may still be off. The probability to run is
the product of three: to fit, to end within the time limits, and not to fail for another reason, by
failures nearby. The search and the report read the same posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from analysis.cost.model import LIKELY, CostModel, Prediction
from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.candidate_set import CandidateSet, features_of, switch_values
from analysis.prediction.goal import Goal
from analysis.prediction.pricing import Pricing
from analysis.prediction.residual import DISTURBED_SHARE, ResidualProcess, survival
from analysis.prediction.satisfaction import satisfaction
from analysis.prediction.trust import residual_log_sd
from analysis.run.fold import Run
from analysis.run.trial import Trial
from trainer.plan.jobs import Array, Indices, Mask

REMEMBERED = 200  # successes that the Gaussian process is fitted to: its cost grows as their cube
SLOW = 0.4  # log ratio of measured to expected step time above which a trial was slow
NEVERTHELESS = 0.05  # probability to run where a variant ran out of memory or the value crashed


@dataclass(frozen=True)
class Observations:
    """The trials of a run that a model learns from."""

    run: Run
    completed: Sequence[Trial]  # trials that have ended
    successes: Sequence[Trial]  # completed trials with an objective that has a logarithm

    @classmethod
    def of(cls, run: Run) -> Self:
        completed = [t for t in run.trials.values() if t.ended]
        return cls(run, completed, [t for t in completed if t.ok and t.positive])

    def calibrated(self, pricing: Pricing) -> CostModel:
        """The cost model, calibrated with these trials; see ``Pricing.telling``.

        It is calibrated again for every 5 % more trials: fewer change little.
        """
        step = max(1, len(self.completed) // 20)
        by_time = sorted(self.completed, key=lambda t: (t.ended_t or 0.0, t.number))
        return pricing.calibrated(pricing.telling(by_time[: len(by_time) // step * step]))


def remembered(trials: Sequence[Trial], goal: Goal) -> list[Trial]:
    """All successes; of more than REMEMBERED only the best and the latest."""
    if len(trials) <= REMEMBERED:
        return list(trials)
    best = sorted(trials, key=lambda t: -goal.measured(t))
    chosen = [*best[: REMEMBERED // 2], *trials[-REMEMBERED // 2 :]]
    return list({t.number: t for t in chosen}.values())


def tried_before(values: Indices, others: Indices) -> Mask:
    """Whether ``others`` of its parameter have each value; shapes (k, n) and (k, m)."""
    pairs = zip(values, others, strict=True)
    return np.array([np.isin(*pair) for pair in pairs], dtype=bool).reshape(values.shape)


class Posterior:
    """Distribution of the goal of candidates, given the trials so far; arrays of shape (m,).

    Args:
        model: calibrated, or with constants drawn from their posterior.
        rows: members of ``candidates`` to evaluate; default all.
        goal: what is maximized; default the logarithm of the first objective.
        rng: draws which trials were disturbed; default the most probable assignment.

    Attributes:
        goal: the unit of ``mean`` and ``deviation``; more is better.
        prediction: the model's, without the correction.
        residual: the correction.
        deviation: standard deviation of the goal.
    """

    def __init__(
        self,
        candidates: CandidateSet,
        model: CostModel,
        observations: Observations,
        rows: Indices | None = None,
        goal: Goal | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        rows = np.arange(len(candidates.indices)) if rows is None else rows
        self.goal = goal or Goal(candidates.pricing)
        self._candidates, self._model = candidates, model
        self.pricing, self.observations = candidates.pricing, observations
        self._rows, self._features = rows, candidates.features[rows]
        self._successes = remembered(observations.successes, self.goal)
        self._measured = np.array([self.goal.measured(t) for t in self._successes])
        self.prediction = model.predict(candidates.jobs[rows])
        self.residual = self._fitted_residual(rng)
        self._shift, self.deviation = self.residual.at(self._features)

    @cached_property
    def _own(self) -> Prediction:
        """The model's prediction of the successes."""
        return self._model.predict(self.pricing.jobs_of([t.config for t in self._successes]))

    @cached_property
    def _errors(self) -> Array:
        """Measured minus predicted goals of the successes."""
        return self._measured - self.goal.predicted(self._own)

    @cached_property
    def mean(self) -> Array:
        return self._corrected(self.prediction)

    def mean_by(self, model: CostModel) -> Array:
        """Mean of the goal by another model's prediction with this correction."""
        if model is self._model:
            return self.mean
        return self._corrected(model.predict(self._candidates.jobs[self._rows]))

    @cached_property
    def upper(self) -> Array:
        """Upper end of the 95 % interval of the goal."""
        return np.asarray(self.mean + self.residual.edges(self.deviation)[1])

    @cached_property
    def feasibility(self) -> Array:
        """Probability to run: to fit, to end in time, and not to fail for another reason."""
        # Where nothing likely fits, the configurations that need least memory still come first.
        return np.asarray(np.maximum(self.prediction.fits * self._ends, np.finfo(float).tiny))

    @cached_property
    def _ends(self) -> Array:
        """Probability to end in time, and not to fail for another reason, if it fits."""
        in_time = self.pricing.in_time(self.prediction, self.observations.completed)
        return np.asarray(in_time * self._survival)

    @cached_property
    def satisfaction(self) -> Array:
        """Probability to satisfy the bounds on measured values, if it runs."""
        at = self._candidates.features_of(self._successes)
        told = self._successes, at, self._candidates.num_unpriced
        return satisfaction(self.pricing, self.prediction, self._features, *told)

    @cached_property
    def eligibility(self) -> Array:
        """Probability to run and to satisfy the bounds, so that it can be the best."""
        return np.asarray(np.maximum(self.feasibility * self.satisfaction, np.finfo(float).tiny))

    @cached_property
    def all_ruled_out(self) -> bool:
        """Whether no candidate may be eligible."""
        if np.any(self.eligibility >= LIKELY):
            return False
        return not np.any(self.prediction.may_fit * self._ends * self.satisfaction >= LIKELY)

    @cached_property
    def at_speed(self) -> Array:
        """Probability to be eligible, and not slowed down by nearly full memory."""
        fast = 1 - self._slow_when_full * self.prediction.full
        return np.asarray(np.maximum(self.eligibility * fast, np.finfo(float).tiny))

    @cached_property
    def _slow_when_full(self) -> float:
        """Posterior probability that jobs near the limit of memory are slow on this machine.

        1/2 before any trial. 0 on CPUs, where no allocator keeps blocks, and for several
        objectives: a slow configuration may still be best by another one.
        """
        if self.pricing.model.cluster.is_cpu or not self.goal.single:
            return 0.0
        from scipy.special import expit  # slow to import

        slow = self._errors < -SLOW
        share = DISTURBED_SHARE + (1 - 2 * DISTURBED_SHARE) * self._own.full
        odds = np.log(np.where(slow, share / DISTURBED_SHARE, (1 - share) / (1 - DISTURBED_SHARE)))
        return float(expit(odds.sum()))

    @cached_property
    def main_effects(self) -> Array:
        """Standard deviation of the main effects of unpriced parameters' values."""
        return self.residual.untried(self._features)

    @cached_property
    def untried(self) -> Array:
        """Priced switch values that no success had; 0 or 1, shape (m, k); 0 before any success."""
        own = switch_values(self._candidates.jobs[self._rows])
        configs = [trial.config for trial in self._successes]
        return (
            own * ~switch_values(self.pricing.jobs_of(configs)).any(axis=0) if configs else 0 * own
        )

    @cached_property
    def is_variant(self) -> Mask:
        """Mask of candidates that differ from a success only in unpriced parameters."""
        return np.isfinite(self._caps)

    @cached_property
    def has_untried_value(self) -> Mask:
        """Mask of candidates with a value of an unpriced parameter that no trial settled.

        A value is settled if a success had it, or if it failed where another value ran.
        """
        settling = [*(t for t in self.observations.completed if t.ok), *self._failed_variants]
        own, tried = self._unpriced_values(), self._unpriced_values(settling)
        return np.asarray((~tried_before(own, tried)).any(axis=0))

    def _unpriced_values(self, trials: Sequence[Trial] | None = None) -> Indices:
        """Indices of unpriced parameters' values, of trials or candidates; shape (k, n)."""
        at = self._candidates.indices[self._rows]
        if trials is not None:
            at = self._candidates.candidates.indices_of([t.config for t in trials])
        return self._candidates.unpriced_values(at)

    @cached_property
    def _failed_variants(self) -> list[Trial]:
        """Failed trials at degrees at which a variant ran."""
        completed = [t for t in self.observations.completed if t.completed]
        degrees = self._candidates.groups_of(completed)
        ran = np.isin(degrees, degrees[[at for at, t in enumerate(completed) if t.ok]])
        return [t for t, here in zip(completed, ran, strict=True) if here and t.failed]

    @cached_property
    def _blamed(self) -> Mask:
        """Mask of candidates with an unpriced value that alone explains a variant's crash."""
        kinds = self.pricing.memory_failures
        crashed = self._unpriced_values([t for t in self._failed_variants if t.kind not in kinds])
        ran = self._unpriced_values([t for t in self.observations.completed if t.ok])
        new = ~tried_before(crashed, ran)
        new &= new.sum(axis=0) == 1
        each = zip(self._unpriced_values(), crashed, new, strict=True)
        alike = [np.isin(own, failed[alone]) for own, failed, alone in each]
        return np.asarray(np.any(alike, axis=0))

    @property
    def has_new_degrees(self) -> bool:
        """Whether some candidate that likely runs is no variant of a measured configuration."""
        return bool((~self.is_variant & (self.eligibility > LIKELY)).any())

    @property
    def num_tried_degrees(self) -> float:
        """Number of successes, variants counted once; infinite without unpriced parameters."""
        if not self._candidates.num_unpriced:
            return np.inf
        return len(np.unique(self._candidates.groups_of(self.observations.successes)))

    def covariance(self, at: Indices) -> Array:
        """Covariance of the goal between some candidates; shape (len(at), len(at))."""
        return self.residual.covariance(self._features[at])

    def interval(self, at: int, deviation: float | None = None) -> dict[str, float]:
        """Expected objective of candidate ``at`` and its 95 % interval, as the journal has it.

        Of several objectives it is the first. ``deviation`` of the goal replaces the posterior's
        where more is uncertain.
        """
        first = Goal(self.pricing)
        log = float((self.mean if self.goal.single else first.predicted(self.prediction))[at])
        known = float(self.deviation[at]) if deviation is None else deviation
        worse, better = (float(edge) / self.goal.scale for edge in self.residual.edges(known))
        low, high = sorted(float(first.objective(x)) for x in (log - worse, log + better))
        return {"objective": float(first.objective(log)), "low": low, "high": high}

    def _corrected(self, prediction: Prediction) -> Array:
        return np.minimum(self.goal.predicted(prediction) + self._shift, self._caps)

    def _fitted_residual(self, rng: np.random.Generator | None) -> ResidualProcess:
        """Gaussian process over the model's errors for the successes, and for the probes."""
        pricing, errors = self.pricing, self._errors
        at = self._candidates.features_of(self._successes)
        if pricing.probes and self.goal.single:
            of_probes, probe_errors = self._of_probes(*pricing.probes)
            at, errors = np.concatenate([at, of_probes]), np.concatenate([errors, probe_errors])
        return ResidualProcess(
            at,
            errors,
            self.goal.scale * residual_log_sd(self.observations.run, pricing.model.log_sd),
            self.goal.scale * NOISE_LOG_SD,
            self._candidates.num_unpriced,
            rng,
        )

    def _of_probes(self, shallow: Pricing, trials: Sequence[Trial]) -> tuple[Array, Array]:
        """Features of the probes that ran, and the errors of their predicted goals."""
        seen, goal = [t for t in trials if t.ok and t.positive], Goal(shallow)
        if not seen:
            return self._features[:0], np.zeros(0)
        own = self._model.predict(shallow.jobs_of([t.config for t in seen]))
        errors = np.array([goal.measured(t) for t in seen]) - goal.predicted(own)
        return features_of(shallow, seen), errors

    @cached_property
    def _caps(self) -> Array:
        """Upper limits of the mean, by measured variants; infinite without any.

        The Gaussian process discards very slow runs as disturbed; a variant of such a run would be
        just as slow, so its measurement caps it.
        """
        if not self._candidates.num_unpriced or not self._successes:
            return np.full(len(self._rows), np.inf)
        effects, here = self.residual.effects, self._features
        there = self._candidates.features_of(self._successes)
        same = self._variants_of(self._successes)
        caps = self._measured + effects(here)[:, None] - effects(there)
        return np.where(same.any(axis=1), np.where(same, caps, -np.inf).max(axis=1), np.inf)

    def _starved(self, failed: Sequence[Trial]) -> Mask:
        """Mask of variants of out-of-memory trials that need as much memory or more."""
        if not failed:
            return np.zeros(len(self._rows), dtype=bool)
        needs = self._model.predict(self.pricing.jobs_of([t.config for t in failed])).peak_bytes
        more = self.prediction.peak_bytes[:, None] >= needs
        return np.asarray((self._variants_of(failed) & more).any(axis=1))

    def _variants_of(self, trials: Sequence[Trial]) -> Mask:
        """Which candidates differ from which trials in unpriced parameters alone; shape (m, n)."""
        degrees = self._candidates.groups_of(trials)
        return np.asarray(self._candidates.groups[self._rows][:, None] == degrees)

    @cached_property
    def _survival(self) -> Array:
        """Probability of no failure other than the predicted ones for lack of memory."""
        pricing, completed = self.pricing, self.observations.completed
        failed = [t for t in completed if t.failed][-REMEMBERED:]
        if not failed:
            return np.ones(len(self._rows))
        # An out-of-memory failure counts as far as the model did not expect it.
        kinds = pricing.memory_failures
        memory = [t.kind in kinds for t in failed]
        fits = self._model.fits(pricing.jobs_of([t.config for t in failed]))
        hopeless = self._starved([t for t in failed if t.kind in kinds]) | self._blamed
        alike = np.where(hopeless, NEVERTHELESS, 1.0)
        return alike * survival(
            self._features,
            self._candidates.features_of(failed),
            np.where(memory, fits, 1.0),
            self._candidates.features_of([t for t in completed if t.ok][-REMEMBERED:]),
        )
