"""The configurations that a guided search chooses among."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis import Array, Pricing, Run, Trial, features, in_time, unpriced_features
from search_spaces import Candidates, Indices
from workflows.optimizer.goal import Goal
from workflows.optimizer.variants import Variants

PRICED = 300_000  # configurations of a space that are priced at the start
SHORTLIST = 8_000  # of them that stay in the race


class Shortlist:
    """Candidates that promise most by the uncalibrated model, and what the model reads of them.

    Args:
        pricing: of the space.
        candidates: valid configurations.
        seed: of what is drawn.

    Attributes:
        indices: of the candidates, those that promise most first; shape (n,).
        jobs: theirs.
        features: theirs, shape (n, d).
        num_unpriced: how many of the features, the last, are of parameters without a price.
        variants: which of them differ only in such parameters.
    """

    def __init__(self, pricing: Pricing, candidates: Candidates, seed: int) -> None:
        self._pricing, self._candidates = pricing, candidates
        self._space = pricing.space
        rng = np.random.default_rng(seed)
        indices = candidates.indices(PRICED, rng, [], max_nodes=2**31)
        facts = self._space.columns(candidates.columns(indices))
        prediction = pricing.model.predict(pricing.jobs(facts, len(indices)))
        ends = prediction.fits * in_time(self._space, prediction)
        promise = Goal(pricing).promised_at_best(prediction) + np.log(np.maximum(ends, 1e-9))
        order = np.argsort(-promise, kind="stable")
        if len(order) > SHORTLIST:
            # Some of the rest as well, should the model have it all wrong.
            some = rng.choice(order[SHORTLIST:], min(SHORTLIST // 8, len(order) - SHORTLIST), False)
            order = np.concatenate([order[:SHORTLIST], some])
        self.indices: Indices = indices[order]
        self.jobs = prediction.jobs[order]
        self._num_nodes = prediction.num_nodes[order]
        raw = candidates.columns(self.indices)
        unpriced = unpriced_features(self._space, raw, len(self.indices))
        self.features, self.num_unpriced = features(self.jobs, unpriced), unpriced.shape[1]
        self.variants = Variants(candidates, self.indices)

    def free(self, known: Run, max_nodes: int) -> Indices:
        """Places of what is not among the trials of ``known`` and narrow enough; shape (m,)."""
        proposed = self._candidates.indices_of([t.config for t in known.trials.values()])
        new = ~np.isin(self.indices, proposed) & (self._num_nodes <= max_nodes)
        return np.flatnonzero(new)

    def features_of(self, trials: Sequence[Trial]) -> Array:
        """As ``features``, of trials, which need not be on the list."""
        if not trials:
            return self.features[:0]
        rows = [self._space.raw(t.config) for t in trials]
        raw = {name: np.array([row[name] for row in rows]) for name in self._space.parameters}
        unpriced = unpriced_features(self._space, raw, len(rows))
        return features(self._pricing.jobs(self._space.columns(raw), len(rows)), unpriced)
