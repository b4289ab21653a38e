"""Continuous unpriced parameters, which a guided search leaves to Bayesian optimization.

The cost model chooses tp, pp and all else that it prices. It has no price for a learning rate or a
buffer size, and no list of candidates holds all their values. So the model chooses among
configurations with these held at one value, and DeepHyper, which sees every trial, picks the
continuous values for the chosen configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis import Run
from search_spaces import Candidates
from trainer.plan.jobs import Array
from workflows.optimizer.deephyper import DeepHyperOptimizer
from workflows.optimizer.policy import Problem

NUM_VALUES = 2_000  # combinations of continuous values, among which DeepHyper chooses


class ContinuousPart:
    """The continuous parameters of a problem that its cost model does not price.

    Attributes:
        names: of these parameters; empty if the problem lists its configurations.
        candidates: the problem's, with these parameters held at one value.
    """

    def __init__(self, problem: Problem, optimizer: DeepHyperOptimizer) -> None:
        space = problem.space
        unpriced = problem.pricing.unpriced if problem.pricing else []
        continuous = [n for n in unpriced if space.parameters[n].span is not None]
        self.names = tuple(continuous) if problem.only is None else ()
        held = space.holding(self.names)
        self.candidates = Candidates(held) if self.names else problem.candidates
        self._space, self._optimizer = space, optimizer

    def completed(
        self,
        config: Mapping[str, Any],
        run: Run,
        rng: np.random.Generator,
        weights: Array | None = None,
    ) -> tuple[dict[str, Any], str] | None:
        """A raw configuration with values of the continuous parameters, and who chose them.

        None if no drawn value makes it valid and new. ``weights`` are of several objectives.
        """
        columns: dict[str, Any] = {n: np.repeat([v], NUM_VALUES) for n, v in config.items()}
        for name in self.names:
            columns[name] = self._space.parameters[name].drawn(NUM_VALUES, rng)
        rows = np.flatnonzero(self._space.valid(columns))
        lists = {name: column[rows].tolist() for name, column in columns.items()}
        proposed = {tuple(self._space.raw(t.config).items()) for t in run.trials.values()}
        some = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        new = [raw for raw in some if tuple(raw.items()) not in proposed]
        if not new:
            return None
        raw, by, why = self._optimizer.choose(run, new, rng, weights)
        return raw, f"{', '.join(self.names)} {by}, {why}"
