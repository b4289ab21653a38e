"""What a trial takes from its launch, and whether it ends before its space's time limits do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from analysis.cost.jobs import Array
from analysis.cost.model import Prediction
from analysis.prediction.start_up import StartUp
from analysis.run.trial import Trial
from search_spaces import SearchSpace


def start_up_s(space: SearchSpace) -> float:
    """From a trial's launch to its first step, by experience: imports, communicators, weights."""
    return StartUp.expected(space).base_s


def longest_step_s(space: SearchSpace, start_up_s: Array) -> Array:
    """Seconds above which a step makes a trial end as slow or hanging.

    Args:
        space: whose time limits count.
        start_up_s: of trials; shape (n,).
    """
    trial = space.trial
    steps = trial.warmup_steps + trial.measured_steps
    for_steps_s = np.maximum(0.0, trial.timeout_s - start_up_s)
    return np.minimum(for_steps_s / steps, trial.no_progress_timeout_s or np.inf)


def in_time(space: SearchSpace, prediction: Prediction, trials: Iterable[Trial] = ()) -> Array:
    """Probability that trials end before the time limits of their space.

    Step times are log-normal around the prediction in either state of the network, with the model's
    own spread.

    Args:
        space: whose time limits count.
        prediction: of the trials asked about.
        trials: that have ended, from which start-up by the number of nodes is learned.
    """
    from scipy.special import ndtr  # slow to import, and a space is checked without it

    start_s = StartUp.learned(space, trials).seconds(prediction.num_nodes)
    with np.errstate(divide="ignore"):
        longest = np.log(longest_step_s(space, start_s))
    calm, crowded = (
        ndtr((longest - np.log(state_s)) / prediction.model.log_sd)
        for state_s in prediction.states_s
    )
    return np.asarray(calm + prediction.crowded * (crowded - calm))
