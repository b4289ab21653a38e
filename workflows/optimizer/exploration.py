"""Exploring trials, which serve the sensitivity analysis, not the best: ``budget.explore``.

A search samples mostly near its best. An exploring trial is the configuration, among those that
likely run, whose objective is most uncertain under the calibrated cost model: by the variance of
its residual, and by the spread of models with other constants or other outliers (trials that were
slow by chance). Pending trials count as observed. Without a model that predicts the objective, it
is the configuration farthest from all that were tried.
"""

from __future__ import annotations

import numpy as np

from analysis import MissingFactError, NotEnough, Outlook, Run, Trial, trusted
from workflows.optimizer.policy import Policy, Problem, Proposal

CONSIDERED = 2_000  # configurations


class ExploringPolicy(Policy):
    """Explores in place of another policy, for the share of trials that the budget sets."""

    def __init__(self, problem: Problem, policy: Policy) -> None:
        super().__init__(problem)
        self._policy = policy

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        explored = sum(trial.explores for trial in run.trials.values())
        due = explored + 1 <= self.problem.space.budget.explore * (len(run.trials) + 1)
        proposal = self._exploring(run, max_nodes) if due else None
        return proposal or self._policy.propose(run, max_nodes)

    def _exploring(self, run: Run, max_nodes: int) -> Proposal | None:
        """The candidate the calibrated model is least sure of; None if nothing new likely runs."""
        problem, pricing = self.problem, self.problem.pricing
        if pricing is None or not trusted(run, pricing):
            return self._farthest(run, max_nodes)
        seed = int(problem.rng(run).integers(2**32))
        try:
            found = Outlook(run, pricing, seed, problem.candidates).least_known(max_nodes)
        except (NotEnough, MissingFactError):  # the model does not predict the objective here
            return self._farthest(run, max_nodes)
        if found is None:
            return None
        raw, deviation, expected = found
        why = f"the model is least sure of it (± {deviation:.0%})"
        return Proposal(problem.space.canonical(raw), Trial.EXPLORATION, why, expected)

    def _farthest(self, run: Run, max_nodes: int) -> Proposal | None:
        space = self.problem.space
        candidates = self.problem.new(run, max_nodes, self.problem.rng(run), CONSIDERED)
        if not candidates:
            return None
        places, apart = self.problem.places(candidates), np.full(len(candidates), np.inf)
        for tried in self.problem.places([space.raw(t.config) for t in run.trials.values()]):
            apart = np.minimum(apart, np.square(places - tried).sum(axis=1))
        config = space.canonical(candidates[int(np.argmax(apart))])
        return Proposal(config, Trial.EXPLORATION, "farthest from everything that was tried")
