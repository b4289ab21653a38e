"""The quantity that a guided search maximizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from analysis.cost.model import LIKELY, Prediction
from analysis.prediction.pricing import Pricing
from analysis.prediction.scalarization import Scalarization, merits, spread_ranks
from analysis.run.trial import Trial
from trainer.plan.jobs import Array


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
