"""What is expected of candidates: the calibrated model, corrected by what the trials showed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from analysis import (
    NOISE_LOG_SD,
    Array,
    CostModel,
    Prediction,
    Pricing,
    ResidualProcess,
    Run,
    Trial,
    in_time,
    positive,
    residual_log_sd,
    survival,
)
from search_spaces import Indices
from slurm import FAILURES
from workflows.optimizer.expected_gain import (
    ExpectedGain,
    expected_gain,
    improvement,
    most_promising,
)
from workflows.optimizer.goal import Goal
from workflows.optimizer.shortlist import Shortlist

REMEMBERED = 200  # trials that are learned from


@dataclass(frozen=True)
class Evidence:
    """The trials of a run that say something.

    Attributes:
        run: theirs.
        told: those that have ended.
        successes: of them, those with an objective that has a logarithm.
    """

    run: Run
    told: Sequence[Trial]
    successes: Sequence[Trial]

    @classmethod
    def of(cls, run: Run) -> Self:
        told = [t for t in run.trials.values() if t.ended]
        return cls(run, told, [t for t in told if t.ok and positive(t)])


class Belief:
    """What a model makes of some candidates, with all trials known.

    Args:
        shortlist: of the space.
        pricing: of the space.
        model: calibrated with the trials, or drawn from what it may be.
        goal: in whose units the belief is.
        evidence: the trials.
        places: of the candidates on the shortlist; shape (m,).

    Attributes, each of shape (m,):
        mean: what is expected, more being better.
        deviation: of that.
        untried: what a value that no trial had yet may add.
        at_most: what it is at most, by what was measured of its variants; infinite without any.
        runs: the probability that it runs.
    """

    def __init__(
        self,
        shortlist: Shortlist,
        pricing: Pricing,
        model: CostModel,
        goal: Goal,
        evidence: Evidence,
        places: Indices,
    ) -> None:
        self._shortlist, self._pricing, self._model, self._goal = shortlist, pricing, model, goal
        self._jobs, self._features = shortlist.jobs[places], shortlist.features[places]
        self._prediction = model.predict(self._jobs)
        self._residual = self._left(evidence)
        self._shift, self.deviation = self._residual.at(self._features)
        self.untried = self._residual.untried(self._features)
        self.at_most = self._most(places, evidence.successes[-REMEMBERED:])
        self.mean = self._corrected(self._prediction)
        ends = self._prediction.fits * in_time(pricing.space, self._prediction, evidence.told)
        self.runs = np.maximum(ends, 1e-12) * self._survival(evidence.told)

    def gains(self, best: Trial, runs: Array | None = None) -> Array:
        """What each candidate is expected to gain over the best trial, as a share; shape (m,).

        Args:
            best: the trial.
            runs: the probability that a candidate runs; default that it does.
        """
        runs = np.ones(len(self.mean)) if runs is None else runs
        return improvement(self.mean, self.deviation, runs, self._goal.measured(best))

    def left_to_gain(
        self, best: Trial, batch: int, model: CostModel, rng: np.random.Generator
    ) -> ExpectedGain:
        """What the candidates are expected to gain over the best trial together.

        Args:
            best: the trial.
            batch: trials that run at once.
            model: whose expectations count, where this belief's is drawn.
            rng: of the draws.
        """
        mean = self._corrected(model.predict(self._jobs))
        first = most_promising(mean, self.deviation, self.runs)
        covariance = self._residual.covariance(self._features[first])
        best_log = self._goal.measured(best)
        return expected_gain(mean[first], covariance, self.runs[first], best_log, batch, rng)

    def interval(self, at: int) -> dict[str, float]:
        """The objective that is expected of candidate ``at``, and its 95 % interval."""
        # Of several objectives it is the first, of which the correction of an aim says nothing.
        first, single = Goal(self._pricing), self._goal.single
        log = float(self.mean[at] if single else first.promised(self._prediction)[at])
        edges = self._residual.edges(float(self.deviation[at]))
        worse, better = (edge / self._goal.scale for edge in edges)
        low, high = sorted((first.objective(log - worse), first.objective(log + better)))
        return {"objective": first.objective(log), "low": low, "high": high}

    def _corrected(self, prediction: Prediction) -> Array:
        return np.minimum(self._goal.promised(prediction) + self._shift, self.at_most)

    def _left(self, evidence: Evidence) -> ResidualProcess:
        """What the model leaves at any candidate, from what it left of the successes."""
        scale = self._goal.scale
        log_sd = scale * residual_log_sd(evidence.run, self._pricing.model.log_sd)
        successes, unpriced = evidence.successes[-REMEMBERED:], self._shortlist.num_unpriced
        if not successes:
            none = self._features[:0]
            return ResidualProcess(none, np.zeros(0), log_sd, unpriced=unpriced)
        own = self._model.predict(self._pricing.jobs_of([t.config for t in successes]))
        left = self._measured(successes) - self._goal.promised(own)
        there, noise = self._shortlist.features_of(successes), scale * NOISE_LOG_SD
        return ResidualProcess(there, left, log_sd, noise, unpriced)

    def _most(self, places: Indices, successes: Sequence[Trial]) -> Array:
        here, there = self._features, self._shortlist.features_of(successes)
        effects = self._residual.effects
        return self._shortlist.variants.at_most(
            places, effects(here), successes, effects(there), self._measured(successes)
        )

    def _survival(self, told: Sequence[Trial]) -> Array:
        """Probability of no failure that memory does not explain, from the failures so far."""
        failed = [t for t in told if t.kind in FAILURES][-REMEMBERED:]
        if not failed:
            return np.ones(len(self.mean))
        # What the model expects to run out of memory says nothing more when it does.
        memory = [t.kind in self._pricing.memory_failures for t in failed]
        fits = self._model.predict(self._pricing.jobs_of([t.config for t in failed])).fits
        return survival(
            self._features,
            self._shortlist.features_of(failed),
            np.where(memory, fits, 1.0),
            self._shortlist.features_of([t for t in told if t.ok][-REMEMBERED:]),
        )

    def _measured(self, trials: Sequence[Trial]) -> Array:
        return np.array([self._goal.measured(t) for t in trials])
