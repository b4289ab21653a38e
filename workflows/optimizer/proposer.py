"""Chooses the next configuration; holds no state but what the seed fixes.

Where the cost model can price a space, it guides the search (``guide``). Where it cannot, or where
the search's own residuals show that it is wrong, DeepHyper's Bayesian optimization takes over
(``bayesian``), with everything that was measured so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from analysis.cost.groups import MissingFactError
from analysis.prediction.pricing import Pricing, price
from analysis.run.fold import Run
from search_spaces import SearchSpace
from search_spaces.points.candidates import Candidates
from workflows.optimizer.deephyper import Bayesian
from workflows.optimizer.model_guided import Guide
from workflows.optimizer.scalarization import weights

NUM_CANDIDATES = 10_000  # among which the acquisition's best is looked for

Policy = Literal["meshtune", "deephyper", "cost-model", "random"]


@dataclass(frozen=True)
class Proposal:
    """The next configuration, who chose it, why, and what is expected of it."""

    config: dict[str, Any]
    by: str
    why: str
    expected: Mapping[str, float] = field(default_factory=dict)


class Proposer:
    """Proposes configurations of ``space``.

    Args:
        space: what may be proposed.
        seed: equal seeds and histories give equal proposals.
        policy: ``meshtune``: the cost model, then Bayesian optimization where it fails;
            ``deephyper``: Bayesian optimization alone; ``cost-model``: its ranking, never
            corrected; ``random``: any valid one.
        num_initial: see ``Bayesian``.
        pricing: other prices than the space's own.
        only: the configurations that may be proposed; default all valid ones.
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        policy: Policy = "meshtune",
        num_initial: int | None = None,
        pricing: Pricing | None = None,
        only: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.space = space
        self.seed = seed
        self.policy = policy
        self._candidates = Candidates(space, only)
        self._bayesian = Bayesian(space, num_initial)
        self._pricing = pricing

    @cached_property
    def _guide(self) -> Guide | None:
        """Made at the first proposal: a run that is only looked at needs no prices."""
        pricing = self._pricing or price(self.space)
        if pricing and self.space.more_objectives and not pricing.prices_all_objectives:
            return None  # measurements alone say where its front is
        try:
            return Guide(pricing, self._candidates, self.seed) if pricing else None
        except MissingFactError:  # such as the network, which only some configurations need
            return None

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        """The next configuration that fits ``max_nodes``; None if all have been proposed."""
        rng = np.random.default_rng((self.seed, len(run.trials)))
        aim, towards = None, ""
        if self.space.more_objectives:
            aim = weights(len(self.space.objectives), self.seed, len(run.trials))
            shares = zip(aim, self.space.objectives, strict=True)
            towards = "; weights: " + ", ".join(f"{w:.2f} {o.key}" for w, o in shares)
        guided = self.policy in ("meshtune", "cost-model")
        guide = self._guide if guided else None
        if guide and (self.policy == "cost-model" or guide.believed(run)):
            history = Run(run.directory) if self.policy == "cost-model" else run
            guess = guide.guess(history, max_nodes, rng, known=run, weights=aim)
            if guess:
                config = self._candidates.configs(np.array([guess.index]))[0]
                return Proposal(
                    self.space.canonical(config), "cost model", guess.why + towards, guess.expected
                )
        known = [t.config for t in run.trials.values()]
        indices = self._candidates.indices(NUM_CANDIDATES, rng, known, max_nodes)
        if not indices.size:
            return None
        if self.policy == "random":
            first = self._candidates.configs(indices[:1])[0]
            return Proposal(self.space.canonical(first), "random", "policy")
        candidates = self._candidates.configs(indices)
        raw, by, why = self._bayesian.choose(run, candidates, rng, aim)
        if by == "bayesian":
            why += towards
        if guide:
            why += "; the cost model was wrong here"
        return Proposal(self.space.canonical(raw), by, why)
