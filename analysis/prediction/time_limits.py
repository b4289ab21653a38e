"""What a trial takes from its launch, and whether it ends before its space's time limits do."""

from __future__ import annotations

import numpy as np

from analysis.cost.jobs import Array
from analysis.cost.model import Prediction
from search_spaces import SearchSpace

START_UP_S, CPU_START_UP_S = 60.0, 5.0


def start_up_s(space: SearchSpace) -> float:
    """From a trial's launch to its first step, by experience: imports, communicators, weights."""
    builtin = space.trainer.builtin
    return CPU_START_UP_S if builtin is not None and builtin.device == "cpu" else START_UP_S


def longest_step_s(space: SearchSpace) -> float:
    """Seconds above which a step makes a trial end as slow or hanging."""
    trial = space.trial
    steps = trial.warmup_steps + trial.measured_steps
    for_steps_s = max(0.0, trial.timeout_s - start_up_s(space))
    return min(for_steps_s / steps, trial.no_progress_timeout_s or np.inf)


def in_time(space: SearchSpace, prediction: Prediction) -> Array:
    """Probability that trials end before the time limits of their space.

    Step times are log-normal around the prediction in either state of the network, with the model's
    own spread.
    """
    from scipy.special import ndtr  # slow to import, and a space is checked without it

    with np.errstate(divide="ignore"):
        longest = np.log(longest_step_s(space))
    calm, crowded = (
        ndtr((longest - np.log(state_s)) / prediction.model.log_sd)
        for state_s in prediction.states_s
    )
    return np.asarray(calm + prediction.crowded * (crowded - calm))
