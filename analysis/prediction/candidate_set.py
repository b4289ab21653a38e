"""Configurations of a space, as the posterior reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np

from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.goal import Goal
from analysis.prediction.pricing import Pricing
from analysis.prediction.residual import features, unpriced_features
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Candidates
from trainer.plan.jobs import Array, Indices, Jobs

PRICED = 300_000  # configurations priced for a shortlist
SHORTLIST = 8_000  # of them, the best by the uncalibrated model


class CandidateSet:
    """Some valid configurations of a space, with their jobs and features.

    ``indices`` are those of the members among all ``candidates``.

    Attributes:
        jobs: of the members, shape (n,).
        features: of the members, shape (n, d).
        num_unpriced: number of last columns of ``features`` that encode unpriced parameters.
        num_nodes: of each member; shape (n,).
    """

    def __init__(self, pricing: Pricing, candidates: Candidates, indices: Indices) -> None:
        self.pricing, self.candidates, self.indices = pricing, candidates, indices
        space, raw = pricing.space, candidates.columns(indices)
        self.jobs: Jobs = pricing.jobs(raw)
        self.num_nodes = np.broadcast_to(space.columns(raw).columns["num_nodes"], indices.shape)
        unpriced = unpriced_features(space, raw)
        self.features, self.num_unpriced = features(self.jobs, unpriced), unpriced.shape[1]
        unknown, every = unpriced_parameters(candidates.space), candidates.space.parameters
        self._unpriced = np.array([name in unknown for name in every])
        self._radix = [len(parameter.values) for parameter in every.values()]

    @classmethod
    def shortlist(cls, pricing: Pricing, candidates: Candidates, seed: int) -> Self:
        """The configurations that a search chooses among, best first by the model before any trial.

        Of more than PRICED or SHORTLIST, ``seed`` draws some.
        """
        rng = np.random.default_rng(seed)
        indices = candidates.indices(PRICED, rng, [], max_nodes=2**31)
        jobs = pricing.jobs(candidates.columns(indices))
        prediction = pricing.calibrated([]).predict(jobs)
        fits = (prediction.fits + prediction.may_fit) / 2
        runs = np.maximum(fits * pricing.in_time(prediction), 1e-9)
        promise = Goal(pricing).predicted_at_best(prediction) + np.log(runs)
        order = np.argsort(-promise, kind="stable")
        if len(order) > SHORTLIST:
            # Some of the others too, in case the model is badly wrong.
            others = order[SHORTLIST:]
            drawn = rng.choice(others, min(SHORTLIST // 8, len(others)), replace=False)
            order = np.concatenate([order[:SHORTLIST], drawn])
        return cls(pricing, candidates, indices[order])

    def untried(self, run: Run, max_nodes: int = 2**31) -> Indices:
        """Rows of at most ``max_nodes`` nodes that no trial of the run has; shape (m,)."""
        tried = self.candidates.indices_of([t.config for t in run.trials.values()])
        return np.flatnonzero(~np.isin(self.indices, tried) & (self.num_nodes <= max_nodes))

    def features_of(self, trials: Sequence[Trial]) -> Array:
        """Features of trials, which need not be members; shape (len(trials), d)."""
        return features_of(self.pricing, trials) if trials else self.features[:0]

    @cached_property
    def groups(self) -> Indices:
        """Group of each member, shape (n,); in a group only unpriced values differ."""
        return self._groups_of(self.indices)

    def groups_of(self, trials: Sequence[Trial]) -> Indices:
        """The same of trials, which need not be members."""
        return self._groups_of(self.candidates.indices_of([t.config for t in trials]))

    def unpriced_values(self, indices: Indices) -> Indices:
        """Index of each configuration's value of every unpriced parameter; shape (k, n)."""
        digits = np.stack(np.unravel_index(indices, self._radix))
        return np.asarray(digits[self._unpriced])

    def _groups_of(self, indices: Indices) -> Indices:
        """Index of each configuration's variant that has every unpriced parameter's first value."""
        digits = np.stack(np.unravel_index(indices, self._radix))
        digits[self._unpriced] = 0
        return np.asarray(np.ravel_multi_index(tuple(digits), self._radix))


def features_of(pricing: Pricing, trials: Sequence[Trial]) -> Array:
    """Features of trials of a priced space; shape (len(trials), d)."""
    raw = pricing.raw([trial.config for trial in trials])
    return features(pricing.jobs(raw), unpriced_features(pricing.space, raw))


def switch_values(jobs: Jobs) -> Array:
    """One-hot values of the switches that the cost model prices; 0 or 1, shape (n, k)."""
    layout, placement = jobs.layout, jobs.placement
    degrees = (layout.pp, layout.vpp, layout.cp, layout.ep)
    shards = (placement.weight_shard, placement.gradient_shard, placement.optimizer_shard)
    options = (jobs.options.sequence_parallel, jobs.options.recompute)
    switches = [*(np.asarray(x > 1, float) for x in (*degrees, *shards)), *options, *jobs.modules]
    return np.stack([switch == v for switch in switches for v in range(3)], axis=1).astype(float)
