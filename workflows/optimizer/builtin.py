"""Policies that the cost model does not guide: random choice, and Bayesian optimization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from analysis import MissingFactError, Observations, Pricing, Run, trusted
from trainer.plan.jobs import Array
from workflows.optimizer.deephyper import DeepHyperOptimizer
from workflows.optimizer.policy import Policy, Problem, Proposal

LIKELY = 0.5  # probability to run that DeepHyper's candidates need, if any has it
DOUBT = 0.02  # else each one stays with its probability to run, or this if that is lower


class RandomPolicy(Policy):
    """Random choice."""

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        drawn = self.problem.any_new(run, max_nodes)
        if drawn is None:
            return None
        return Proposal(self.problem.space.canonical(drawn), "random", "policy")


class DeepHyperPolicy(Policy):
    """Bayesian optimization alone; ``num_initial`` as in ``DeepHyperOptimizer``."""

    def __init__(self, problem: Problem, num_initial: int | None = None) -> None:
        super().__init__(problem)
        self._optimizer = DeepHyperOptimizer(problem.space, num_initial)

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        rng = self.problem.rng(run)
        drawn = self._drawn(run, max_nodes, rng)
        if not drawn:
            return None
        weights, towards = self.problem.weights(run)
        raw, by, why = self._optimizer.choose(run, drawn, rng, weights)
        if by == "bayesian":
            why += towards
        return Proposal(self.problem.space.canonical(raw), by, why)

    def _drawn(self, run: Run, max_nodes: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        return self.problem.new(run, max_nodes, rng)


class LikelyToRun(DeepHyperPolicy):
    """Bayesian optimization among configurations that the calibrated cost model expects to run.

    For objectives without a price, such as a loss, and for badly predicted times: the model still
    predicts what fits, until too many trials that it expected to run have failed.
    """

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        proposal = super().propose(run, max_nodes)
        if proposal is None:
            return None
        chances = self._chances(run, [self.problem.space.raw(proposal.config)])
        if chances is None:
            return proposal
        return replace(proposal, expected={"fits": float(chances[0])})

    def _drawn(self, run: Run, max_nodes: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        drawn = super()._drawn(run, max_nodes, rng)
        chances = self._chances(run, drawn) if drawn else None
        if chances is None:
            return drawn
        likely = chances >= LIKELY
        if not likely.any():
            likely = rng.random(len(drawn)) < np.maximum(chances, DOUBT)
        return [drawn[i] for i in np.flatnonzero(likely)] or drawn

    def _chances(self, run: Run, configs: Sequence[Mapping[str, Any]]) -> Array | None:
        """Probabilities that raw configurations run; None if the model cannot tell, or is wrong."""
        pricing = self._pricing
        if pricing is None or not trusted(run):
            return None
        try:
            model = Observations.of(run).calibrated(pricing)
            prediction = model.predict(pricing.jobs_of(configs))
        except MissingFactError:  # such as the network, which only some configurations need
            return None
        ends = pricing.in_time(prediction, run.trials.values())
        return np.asarray(prediction.fits * ends)

    @cached_property
    def _pricing(self) -> Pricing | None:
        return self.problem.pricing and self.problem.pricing.supposing()
