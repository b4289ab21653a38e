"""The quantity that a guided search maximizes.

With several objectives every proposal draws weights and maximizes the augmented Chebyshev
scalarization (Knowles 2006, ParEGO, equation 2) of the objectives' logarithms, so that it aims at
one point of the Pareto front. A weighted sum would never find points in a concave part of the
front; the largest weighted distance to the ideal point does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from analysis.cost.model import LIKELY, Prediction
from analysis.pareto import non_dominated
from analysis.prediction.pricing import Pricing
from analysis.run.trial import Trial
from search_spaces import Objective
from trainer.plan.jobs import Array

AUGMENTED = 0.05  # weight of the plain sum, which decides between equal largest distances
AIMS = 16  # directions by which points are ranked
_NARROW = 1e-6  # range of a logarithm below which an objective does not vary over the front


def merits(objectives: Sequence[Objective], figures: Array) -> Array:
    """Figures of several objectives as the search compares them; shape (n, k), more is better.

    Logarithms, except for an objective with values that have none.
    """
    signs = np.array([1.0 if o.maximize else -1.0 for o in objectives])
    positive = (figures > 0).all(axis=0)
    logs = np.log(np.where(positive, figures, 1.0))
    return np.asarray(signs * np.where(positive, logs, figures))


@dataclass(frozen=True)
class Scalarization:
    """One direction in which the front is searched."""

    ideal: Array  # the best known value of each objective
    slopes: Array  # weights of the distances to it; their sum is 1, to keep a logarithm's unit
    scale: float  # the scalar's error for an error of 1 in a predicted logarithm

    @classmethod
    def from_weights(
        cls, weights: Array, known: Array, uncertain: Sequence[bool] = ()
    ) -> Scalarization:
        """The direction of weights; each objective is scaled by its range on the front.

        ``known`` points are reached or expected, (n, k), more is better; ``uncertain`` objectives
        are predicted, by default all.
        """
        front = known[non_dominated(known)]
        ranges = np.ptp(front, axis=0)
        ranges = np.where(ranges > _NARROW, ranges, np.ptp(known, axis=0))
        slopes = weights / np.where(ranges > _NARROW, ranges, 1.0)
        slopes = slopes / slopes.sum()
        return cls(known.max(axis=0), slopes, float(slopes[list(uncertain) or slice(None)].max()))

    @staticmethod
    def weights(count: int, seed: int, number: int) -> Array:
        """Weights of ``count`` objectives, for proposal ``number``; they sum to 1.

        A Kronecker sequence with a start drawn from the seed: it covers the simplex evenly even in
        few consecutive proposals, and needs no state but ``number``.
        """
        root = 2.0  # of x^count = x + 1; the golden ratio for two (Roberts 2018)
        for _ in range(60):
            root = (1 + root) ** (1 / count)
        steps = root ** -np.arange(1.0, count)
        start = np.random.default_rng((seed, count)).random(count - 1)
        cuts = np.sort((start + number * steps) % 1.0)
        return np.diff(np.concatenate([[0.0], cuts, [1.0]]))

    @staticmethod
    def measured(objectives: Sequence[Objective], trials: Sequence[Trial]) -> Array:
        """Merits of successful trials; shape (trials, objectives), see :func:`merits`."""
        rows = [[trial.objectives[objective.key] for objective in objectives] for trial in trials]
        return merits(objectives, np.array(rows).reshape(len(trials), len(objectives)))

    def value(self, points: Array) -> Array:
        """The scalar by which points rank, shape (n,); at most 0, more is better."""
        distances = self.slopes * (points - self.ideal)
        return np.asarray(distances.min(axis=1) + AUGMENTED * distances.sum(axis=1))


def spread_ranks(points: Array) -> Array:
    """Best rank, from 1, of points (n, k) over AIMS directions."""
    best = np.full(len(points), np.inf)
    for number in range(AIMS):
        weights = Scalarization.weights(points.shape[1], 0, number)
        value = Scalarization.from_weights(weights, points).value(points)
        order = np.argsort(-value, kind="stable")
        best = np.minimum(best, np.argsort(order) + 1)
    return best


class Goal:
    """The logarithm of the objective; for several objectives, their scalarization.

    Args:
        pricing: of the space, which names the objectives.
        aim: direction in which the Pareto front is searched; default: the first objective alone.

    Attributes:
        single: whether there is one objective.
        scale: the goal's error for an error of 1 in a predicted logarithm.
    """

    def __init__(self, pricing: Pricing, aim: Scalarization | None = None) -> None:
        self._pricing, self._aim = pricing, aim
        self._objectives = pricing.space.objectives
        self.single = aim is None
        self.scale = 1.0 if aim is None else aim.scale

    def towards(self, weights: Array, prediction: Prediction, successes: Sequence[Trial]) -> Self:
        """The goal for some weights of the objectives.

        Candidates of ``prediction`` that likely fit count for the front.
        """
        predicted = self._merits(prediction)
        likely = predicted[prediction.fits > LIKELY]
        within = [trial for trial in successes if not trial.violated]
        known = np.concatenate([likely, Scalarization.measured(self._objectives, within)])
        uncertain = [objective.key != "num_nodes" for objective in self._objectives]
        aim = Scalarization.from_weights(weights, known if len(known) else predicted, uncertain)
        return type(self)(self._pricing, aim)

    def predicted(self, prediction: Prediction) -> Array:
        """The goal of candidates, more being better; shape (n,)."""
        if self._aim is not None:
            return self._aim.value(self._merits(prediction))
        return np.asarray(np.log(self._pricing.promise(prediction)))

    def predicted_at_best(self, prediction: Prediction) -> Array:
        """Score of candidates for a whole search, over all weights; more is better; shape (n,)."""
        if len(self._objectives) == 1:
            return self.predicted(prediction)
        return -np.log(spread_ranks(self._merits(prediction)))

    def measured(self, trial: Trial) -> float:
        """The goal as a successful trial measured it."""
        if self._aim is not None:
            return float(self._aim.value(Scalarization.measured(self._objectives, [trial]))[0])
        log = float(np.log(trial.objective or np.nan))
        return log if self._objectives[0].maximize else -log

    def objective(self, goal: float | Array) -> Array:
        """The first objective whose logarithm the goal is; for a single one."""
        return np.asarray(np.exp(goal if self._objectives[0].maximize else np.negative(goal)))

    def _merits(self, prediction: Prediction) -> Array:
        figures = [self._pricing.figure(each.key, prediction) for each in self._objectives]
        known = [figure for figure in figures if figure is not None]  # the policy checked: none is
        return merits(self._objectives, np.stack(known, axis=1))
