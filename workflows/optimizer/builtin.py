"""The policies of ``meshtune search``: the cost model, Bayesian optimization, and their baselines.

Where the cost model can price a space, it guides the search. Where it cannot, or where the search's
own residuals show that it is wrong, DeepHyper's Bayesian optimization takes over, with everything
that was measured so far.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from analysis import MissingFactError, Run
from workflows.optimizer.deephyper import DeepHyperOptimizer
from workflows.optimizer.model_guided import ModelGuidedSearch
from workflows.optimizer.policy import Policy, Problem, Proposal
from workflows.optimizer.scalarization import weights_of


class RandomPolicy(Policy):
    """Any configuration."""

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        drawn = self.problem.any_new(run, max_nodes)
        if drawn is None:
            return None
        return Proposal(self.problem.space.canonical(drawn), "random", "policy")


class DeepHyperPolicy(Policy):
    """Bayesian optimization alone.

    Args:
        problem: what it chooses from.
        num_initial: see ``DeepHyperOptimizer``.
    """

    def __init__(self, problem: Problem, num_initial: int | None = None) -> None:
        super().__init__(problem)
        self._optimizer = DeepHyperOptimizer(problem.space, num_initial)

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        rng = self.problem.rng(run)
        drawn = self.problem.new(run, max_nodes, rng)
        if not drawn:
            return None
        weights, towards = weights_of(self.problem.space, self.problem.seed, len(run.trials))
        raw, by, why = self._optimizer.choose(run, drawn, rng, weights)
        if by == "bayesian":
            why += towards
        return Proposal(self.problem.space.canonical(raw), by, why)


class MeshtunePolicy(Policy):
    """The cost model while it can be trusted, then Bayesian optimization.

    Args:
        problem: what it chooses from.
        num_initial: see ``DeepHyperOptimizer``.
    """

    def __init__(self, problem: Problem, num_initial: int | None = None) -> None:
        super().__init__(problem)
        self._fallback = DeepHyperPolicy(problem, num_initial)

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        model = self._model
        if model and self._trusts(model, run):
            weights, towards = weights_of(self.problem.space, self.problem.seed, len(run.trials))
            suggestion = model.suggest(
                self._lesson(run), max_nodes, self.problem.rng(run), known=run, weights=weights
            )
            if suggestion:
                config = self.problem.candidates.configs(np.array([suggestion.index]))[0]
                return Proposal(
                    self.problem.space.canonical(config),
                    "cost model",
                    suggestion.why + towards,
                    suggestion.expected,
                )
        proposal = self._fallback.propose(run, max_nodes)
        if proposal and model:
            why = proposal.why + "; the cost model was wrong here"
            return Proposal(proposal.config, proposal.by, why)
        return proposal

    def _trusts(self, model: ModelGuidedSearch, run: Run) -> bool:
        return model.trusted(run)

    def _lesson(self, run: Run) -> Run:
        """What the model learns from."""
        return run

    @cached_property
    def _model(self) -> ModelGuidedSearch | None:
        """Made at the first proposal: a run that is only looked at needs no prices."""
        problem = self.problem
        if problem.pricing is None:
            return None
        if problem.space.more_objectives and not problem.pricing.prices_all_objectives:
            return None  # measurements alone say where its front is
        try:
            return ModelGuidedSearch(problem.pricing, problem.candidates, problem.seed)
        except MissingFactError:  # such as the network, which only some configurations need
            return None


class CostModelPolicy(MeshtunePolicy):
    """The cost model's ranking, never corrected."""

    def _trusts(self, model: ModelGuidedSearch, run: Run) -> bool:
        return True

    def _lesson(self, run: Run) -> Run:
        return Run(run.directory)
