"""The policies of ``meshtune search``: the cost model, Bayesian optimization, and their baselines.

The cost model guides the search if it can price the space and its objectives. If it cannot, or the
search's own residuals show that it is wrong, DeepHyper's Bayesian optimization takes over, with all
observations so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from analysis import MissingFactError, Observations, Pricing, Run, Scalarization, trusted
from trainer.plan.jobs import Array
from workflows.optimizer.continuous import ContinuousPart
from workflows.optimizer.deephyper import DeepHyperOptimizer
from workflows.optimizer.model_guided import ModelGuidedSearch
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
        weights, towards = Scalarization.weights(
            self.problem.space, self.problem.seed, len(run.trials)
        )
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


class MeshtunePolicy(Policy):
    """The cost model while it can be trusted, then Bayesian optimization."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._optimizer = DeepHyperOptimizer(problem.space)

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        model = self._model
        trusted = model is not None and self._trusts(model, run)
        if model and trusted:
            guided = self._guided(model, run, max_nodes)
            if guided:
                return guided
        proposal = self._alone.propose(run, max_nodes)
        if proposal and model and not trusted:
            return replace(proposal, why=proposal.why + "; the cost model was wrong here")
        return proposal

    def _guided(self, model: ModelGuidedSearch, run: Run, max_nodes: int) -> Proposal | None:
        """The model's choice; DeepHyper sets continuous parameters without a price."""
        rng, space, rest = self.problem.rng(run), self.problem.space, self._continuous
        weights, towards = Scalarization.weights(space, self.problem.seed, len(run.trials))
        if rest.names and (again := self._best_again(run, max_nodes)):
            completed = rest.completed(again, run, rng)
            if completed:
                raw, why = completed
                return Proposal(space.canonical(raw), "bayesian", f"the best's degrees; {why}")
        suggestion = model.suggest(self._learned(run), max_nodes, rng, known=run, weights=weights)
        if suggestion is None:
            return None
        config, why, expected = suggestion
        why += towards
        if rest.names:
            completed = rest.completed(config, run, rng, weights)
            if completed is None:
                return None
            config, chosen = completed
            why += f"; {chosen}"
            # The model cannot predict what these values gain, so not when to stop, either.
            expected = {k: v for k, v in expected.items() if k not in ("gain", "left")}
        return Proposal(space.canonical(config), "cost model", why, expected)

    def _best_again(self, run: Run, max_nodes: int) -> dict[str, Any] | None:
        """The best trial's configuration, every other time once DeepHyper has enough successes."""
        successes = sum(t.objective is not None for t in run.trials.values())
        if run.best is None or self.problem.space.more_objectives or len(run.trials) % 2 == 0:
            return None
        wide = self.problem.space.num_nodes(run.best.config) > max_nodes
        enough = successes >= self._optimizer.num_initial
        return self.problem.space.raw(run.best.config) if enough and not wide else None

    def _trusts(self, model: ModelGuidedSearch, run: Run) -> bool:
        return trusted(run, model.pricing)

    def _learned(self, run: Run) -> Run:
        """The run from which the model learns."""
        return run

    @cached_property
    def _alone(self) -> LikelyToRun:
        """DeepHyper, for when the model does not choose."""
        return LikelyToRun(self.problem)

    @cached_property
    def _continuous(self) -> ContinuousPart:
        return ContinuousPart(self.problem, self._optimizer)

    @cached_property
    def _model(self) -> ModelGuidedSearch | None:
        """Made at the first proposal: a run that is only looked at needs no prices."""
        problem = self.problem
        if problem.pricing is None:
            return None
        try:
            if not all(problem.pricing.prices(each.key) for each in problem.space.objectives):
                return None  # measurements alone say what is best, or where the front is
            return ModelGuidedSearch(
                problem.pricing.supposing(), self._continuous.candidates, problem.seed
            )
        except MissingFactError:  # such as the network, which only some configurations need
            return None


class CostModelPolicy(MeshtunePolicy):
    """The cost model's ranking, never corrected."""

    def _trusts(self, model: ModelGuidedSearch, run: Run) -> bool:
        return True

    def _learned(self, run: Run) -> Run:
        return Run(run.directory)
