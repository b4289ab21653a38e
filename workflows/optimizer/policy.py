"""Interface of a policy, which chooses the next configuration, and its inputs.

A policy is one class in one file, such as ``sobol``. Its proposals depend on the run's history and
the seed alone: a search that is stopped and resumed proposes the same as an unbroken one.
``meshtune.testing.policies`` checks that, and the rest of the contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from analysis import Pricing, Run, Scalarization
from search_spaces import Candidates, SearchSpace
from trainer.plan.jobs import Array

NUM_CANDIDATES = 10_000  # among which a policy looks for the best


@dataclass(frozen=True)
class Proposal:
    """The next configuration, who chose it, why, and what is expected of it."""

    config: dict[str, Any]  # canonical
    by: str  # the method, in a word or two
    why: str  # for the reader of the report
    # predictions for the trial, by the journal's names; empty without any
    expected: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    """The problem that a policy chooses configurations for."""

    space: SearchSpace  # what is searched
    seed: int  # equal seeds and histories must give equal proposals
    # prices by a model that has learned from earlier runs; default the space's own
    learned: Pricing | None = None
    # the configurations that may be proposed; default all valid ones
    only: Sequence[Mapping[str, Any]] | None = None

    @cached_property
    def candidates(self) -> Candidates:
        """The configurations that may be proposed."""
        return Candidates(self.space, self.only)

    @cached_property
    def pricing(self) -> Pricing | None:
        """The cost model of the space; None if it cannot price it."""
        return self.learned or Pricing.of(self.space)

    def rng(self, run: Run) -> np.random.Generator:
        """Random numbers for the next proposal: a function of the seed and the history."""
        return np.random.default_rng((self.seed, len(run.trials)))

    def weights(self, run: Run) -> tuple[Array | None, str]:
        """Weights of the objectives for the next proposal, and words on them; None for one."""
        objectives = self.space.objectives
        if len(objectives) == 1:
            return None, ""
        drawn = Scalarization.weights(len(objectives), self.seed, len(run.trials))
        shares = zip(drawn, objectives, strict=True)
        return drawn, "; weights: " + ", ".join(f"{w:.2f} {o.key}" for w, o in shares)

    def new(
        self, run: Run, max_nodes: int, rng: np.random.Generator, size: int = NUM_CANDIDATES
    ) -> list[dict[str, Any]]:
        """Raw configurations in random order that are valid, not proposed yet and fit.

        At most ``size``; fewer only if there are no more.
        """
        known = [trial.config for trial in run.trials.values()]
        return self.candidates.draw(size, rng, known, max_nodes)

    def any_new(self, run: Run, max_nodes: int) -> dict[str, Any] | None:
        """The first of what :meth:`new` gives; None if there is none."""
        known = [trial.config for trial in run.trials.values()]
        drawn = self.candidates.indices(NUM_CANDIDATES, self.rng(run), known, max_nodes)[:1]
        return self.candidates.configs(drawn)[0] if len(drawn) else None

    def places(self, configs: Sequence[Mapping[str, Any]]) -> Array:
        """Raw configurations as points: every parameter that varies is an axis from 0 to 1.

        A continuous one keeps its own scale; the values of others are spaced evenly, in order.
        """
        varied = [p for p in self.space.parameters.values() if p.varies]
        rows = [[p.unit(config[p.name]) for p in varied] for config in configs]
        return np.asarray(rows, dtype=float).reshape(len(configs), len(varied))

    def allows(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration, raw or canonical, may be proposed at all."""
        if self.only is None:
            return self.space.first_violation(config) is None
        return tuple(self.space.canonical(config).items()) in self.listed

    @cached_property
    def listed(self) -> frozenset[tuple[tuple[str, Any], ...]]:
        """Items of each canonical configuration of ``only``; empty if all valid ones may be."""
        return frozenset(tuple(self.space.canonical(c).items()) for c in self.only or ())


class Policy(ABC):
    """Chooses configurations of a problem's space.

    Raises PolicyError if it cannot search such a space; the message names the remedy.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        """The next configuration: valid, new, and at most ``max_nodes`` wide.

        Args:
            run: all that has happened. Trials that have not ended are pending: they are not to be
                proposed again. A trial of kind ``ok`` has an ``objective``, and ``objectives`` if
                the space has several.
            max_nodes: of the widest trial that may be proposed.

        Returns:
            None if every such configuration has been proposed.
        """
