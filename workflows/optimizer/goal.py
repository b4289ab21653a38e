"""What a guided search makes as great as it can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from analysis import Array, Prediction, Pricing, Trial
from workflows.optimizer.scalarization import Scalarization, merits, reached, spread_ranks

LIKELY_TO_RUN = 0.5  # probability to fit, from which a prediction counts for the front


class Goal:
    """The logarithm of the objective, or, of several, how near a configuration is to an aim.

    Args:
        pricing: of the space whose objectives count.
        aim: a direction in which the front is looked for; without one the first objective counts.

    Attributes:
        single: whether it is one objective.
        scale: how much of an error in a predicted logarithm the goal has.
    """

    def __init__(self, pricing: Pricing, aim: Scalarization | None = None) -> None:
        self._pricing, self._aim = pricing, aim
        self._objectives = pricing.space.objectives
        self.single = aim is None
        self.scale = 1.0 if aim is None else aim.scale

    def towards(self, weights: Array, prediction: Prediction, successes: Sequence[Trial]) -> Self:
        """Where weights point to, among what was reached and what is likely to run.

        Args:
            weights: of the objectives.
            prediction: of candidates.
            successes: trials that succeeded.
        """
        promised = self._merits(prediction)
        likely = promised[prediction.fits > LIKELY_TO_RUN]
        known = np.concatenate([likely, self._reached(successes)])
        uncertain = [objective.key != "num_nodes" for objective in self._objectives]
        aim = Scalarization.from_weights(weights, known if len(known) else promised, uncertain)
        return type(self)(self._pricing, aim)

    def promised(self, prediction: Prediction) -> Array:
        """By which candidates rank, more being better; shape (n,)."""
        if self._aim is not None:
            return self._aim.value(self._merits(prediction))
        return np.asarray(np.log(self._pricing.promise(prediction)))

    def promised_at_best(self, prediction: Prediction) -> Array:
        """What candidates promise to the search as a whole, whatever its weights; shape (n,)."""
        if len(self._objectives) == 1:
            return self.promised(prediction)
        return -np.log(spread_ranks(self._merits(prediction)))

    def measured(self, trial: Trial) -> float:
        """The same of what a successful trial reached."""
        if self._aim is not None:
            return float(self._aim.value(self._reached([trial]))[0])
        log = float(np.log(trial.objective or np.nan))
        return log if self._objectives[0].maximize else -log

    def objective(self, measured: float) -> float:
        """The objective whose logarithm the goal is; of a single one."""
        return float(np.exp(measured if self._objectives[0].maximize else -measured))

    def _merits(self, prediction: Prediction) -> Array:
        figures = self._pricing.figures(prediction)
        assert figures is not None  # the policy has seen to it
        return merits(self._objectives, figures)

    def _reached(self, trials: Sequence[Trial]) -> Array:
        return merits(self._objectives, reached(self._objectives, trials))
