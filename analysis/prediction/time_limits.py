"""Duration of a trial from its launch, and the probability to end within the space's limits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from analysis.cost.model import Prediction
from analysis.prediction.start_up import StartUp
from analysis.run.trial import Trial
from search_spaces import SearchSpace
from trainer.plan.jobs import Array


def start_up_s(space: SearchSpace) -> float:
    """From a trial's launch to its first step, by experience: imports, communicators, weights."""
    return StartUp.expected(space).base_s


def in_time(space: SearchSpace, prediction: Prediction, trials: Iterable[Trial] = ()) -> Array:
    """Probability that trials end before the time limits of their space.

    Start-ups are log-normal around what is learned or expected, step times around the prediction in
    either state of the network, with the model's own spread. Their sum is taken for log-normal with
    its mean and variance, to first order (Fenton 1960).

    Args:
        space: whose time limits count.
        prediction: of the trials asked about.
        trials: that have ended, from which start-up by the number of nodes is learned.
    """
    from scipy.special import ndtr  # slow to import, and a space is checked without it

    trial, log_sd = space.trial, prediction.model.log_sd
    steps = trial.warmup_steps + trial.measured_steps
    learned = StartUp.learned(space, trials)
    start_s = learned.seconds(prediction.num_nodes)
    start_sd_s = learned.log_sd(prediction.num_nodes) * start_s

    def chance(step_s: Array) -> Array:
        for_steps_s = steps * step_s
        total_s = start_s + for_steps_s
        spread = np.hypot(start_sd_s, log_sd * for_steps_s) / total_s
        whole = ndtr(np.log(trial.timeout_s / total_s) / spread)
        if trial.no_progress_timeout_s is None:
            return np.asarray(whole)
        each = ndtr(np.log(trial.no_progress_timeout_s / step_s) / log_sd)
        # A step that is too long for one limit is so for the other, too.
        return np.asarray(np.minimum(whole, each))

    calm, crowded = (chance(state_s) for state_s in prediction.states_s)
    return np.asarray(calm + prediction.crowded * (crowded - calm))
