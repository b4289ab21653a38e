"""Recorded landscapes made harder: with parameters that no model prices, and with noise."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np

from analysis.run.trial import Trial
from search_spaces.parameters import Parameter
from workflows.replay.landscape import Landscape

KERNELS = {"eager": 0.7, "flash": 1.0, "fused": 0.9}  # share of the speed that each allows
WORKERS = {1: 0.85, 2: 0.95, 4: 1.0, 8: 0.98}
PAIRS = 4  # pairs of noisy answers for each configuration


def with_unpriced(landscape: Landscape, seed: int) -> Landscape:
    """The landscape with an attention kernel and data workers as additional parameters.

    Kernels' speeds are drawn, so that their order tells nothing. The best is as fast as before.
    """
    rng = np.random.default_rng(seed)
    kernels, workers = list(KERNELS), list(WORKERS)
    speeds = dict(zip(kernels, rng.permutation([*KERNELS.values()]), strict=True))
    more = {
        "attention_kernel": Parameter("attention_kernel", tuple(kernels)),
        "data_workers": Parameter("data_workers", tuple(workers)),
    }
    space = replace(landscape.space, parameters={**landscape.space.parameters, **more})
    configs, answers = [], {}
    for config in landscape.configs:
        for kernel, count in product(kernels, workers):
            longer = {**config, "attention_kernel": kernel, "data_workers": count}
            factor = float(speeds[kernel]) * WORKERS[count]
            configs.append(longer)
            answers[tuple(longer.items())] = [
                _times(answer, factor) for answer in landscape.answers[tuple(config.items())]
            ]
    return replace(landscape, space=space, configs=configs, answers=answers)


def disturbed(landscape: Landscape, log_sd: float, seed: int) -> Landscape:
    """The landscape with noise between runs of a configuration.

    The value of a configuration stays the median of its recorded runs.
    """
    rng = np.random.default_rng(seed)
    answers = {}
    for key, recorded in landscape.answers.items():
        worth = landscape.medians.get(key)
        if worth is None:
            answers[key] = recorded
            continue
        ran = next(a for a in recorded if a.ok)
        # The median itself, and pairs of factors around it, which preserve it.
        factors = np.exp(log_sd * rng.standard_normal(PAIRS))
        every = [1.0, *factors, *(1 / factors)]
        answers[key] = [_times(ran, worth / (ran.objective or 1.0) * factor) for factor in every]
    return replace(landscape, answers=answers)


def _times(answer: Trial, factor: float) -> Trial:
    """The same run at another speed."""
    if not answer.ok:
        return answer
    step_time_s = answer.result["step_time_s"]["median"] / factor
    result = {**answer.result, "step_time_s": {"median": step_time_s}}
    return replace(answer, objective=(answer.objective or 0.0) * factor, result=result)
