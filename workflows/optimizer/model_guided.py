"""The search guided by the cost model: its ranking first, corrected by what was measured.

A proposal is computed from the journal alone: the posterior after all completed trials, and the
candidate with the highest acquisition. While other trials run, the model's constants are drawn from
their posterior, so that a batch holds the best of several plausible models, not eight neighbours of
one model's best.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from analysis import (
    CandidateSet,
    Goal,
    Observations,
    Posterior,
    Pricing,
    Run,
    acquisition,
    expected_gain,
)
from foundation.quantities import counted
from search_spaces import Candidates
from trainer.plan.jobs import Array


class ModelGuidedSearch:
    """Chooses among a space's candidates by the cost model.

    Every calibration starts from the model of ``pricing``; ``seed`` is of the shortlist.
    """

    def __init__(self, pricing: Pricing, candidates: Candidates, seed: int) -> None:
        self.pricing = pricing
        self._shortlist = CandidateSet.shortlist(pricing, candidates, seed)

    def suggest(
        self,
        run: Run,
        max_nodes: int,
        rng: np.random.Generator,
        known: Run | None = None,
        weights: Array | None = None,
    ) -> tuple[dict[str, Any], str, dict[str, float]] | None:
        """The next raw configuration, why, and what is expected of it.

        None if the shortlist has none that is new and narrow enough. Trials of ``known`` (default:
        ``run``) are not proposed again; ``weights`` are of several objectives.
        """
        rows = self._shortlist.untried(known or run, max_nodes)
        if not len(rows):
            return None
        observations = Observations.of(run)
        calibrated = model = observations.calibrated(self.pricing)
        rule, pending = "highest acquisition", len(run.trials) - len(observations.completed)
        if pending:
            model, rule = model.drawn(rng), "best under one of several models"
        goal = Goal(self.pricing)
        if weights is not None:
            prediction = model.predict(self._shortlist.jobs[rows])
            goal = goal.towards(weights, prediction, observations.successes)
        posterior = Posterior(self._shortlist, model, observations, rows, goal)
        best = run.best if goal.single and run.best and run.best.positive else None
        at = int(np.argmax(acquisition(posterior, best)))
        expected = posterior.interval(at) | {"fits": float(posterior.feasibility[at])}
        if self.pricing.space.subject_to:
            expected["holds"] = float(posterior.satisfaction[at])
        if best and (gain := expected_gain(posterior, best, 1 + pending, calibrated, rng)):
            expected |= gain
        learned = "no trial yet"
        if observations.completed:
            learned = counted(len(observations.successes), "success")
        if self.pricing.start:
            learned += f", started from {self.pricing.start}"
        [config] = self._shortlist.candidates.configs(self._shortlist.indices[rows[[at]]])
        return config, f"{rule}, cost model after {learned}", expected
