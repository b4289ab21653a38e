"""A run whose trials are as fast as the cost model says, or slower by known factors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Candidates
from search_spaces.space import SearchSpace


def priced_run(space: SearchSpace, count: int, slower: Mapping[str, float]) -> Run:
    """Trials of random configurations.

    Args:
        space: whose objective is tokens per second.
        count: trials at most.
        slower: factors of the step time, by ``name=value``.
    """
    goals = [(space.objective.key, space.objective.maximize)]
    run, pricing = Run(Path(), goals=goals), Pricing(space)
    candidates = Candidates(space)
    raw = candidates.configs(candidates.indices(count, np.random.default_rng(1), [], 2**31))
    prediction = pricing.predict(raw)
    for number, each in enumerate(raw):
        config = space.canonical(each)
        factor = np.prod([slower.get(f"{name}={value}", 1.0) for name, value in config.items()])
        trial = Trial(number, config, 0.0, kind="ok")
        trial.objective = float(prediction.tokens_per_second[number] / factor)
        trial.result = {"step_time_s": {"median": float(prediction.step_time_s[number] * factor)}}
        run.trials[number] = trial
    return run
