"""Spaces as the cost model sees them, and ``meshtune predict``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.memory_fit import state_bytes
from analysis.prediction.pricing import NotPricedError, Pricing
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import load_space
from search_spaces.frameworks import MESHTUNE
from search_spaces.points.candidates import Candidates
from trainer.config import TrainConfig


def test_a_space_is_priced_as_its_own_trials_would_be_placed() -> None:
    space = load_space("gpt_20b_zero_topo_frontier")
    pricing, candidates = Pricing(space), Candidates(space)
    indices = candidates.indices(40, np.random.default_rng(0), [], 10**6)
    configs = candidates.configs(indices)
    prediction = pricing.predict(configs)
    for row, config in enumerate(configs):
        train = TrainConfig.parse(space.train_config(config, "none"))
        placement = train.place(space.world_size(config), space.cluster.gpus_per_node)
        job = prediction.jobs[row : row + 1]
        own = state_bytes(np.array([1e6]), job, MESHTUNE)
        expected = placement.bytes_per_rank(1_000_000)
        assert sum(expected.values()) == pytest.approx(float(sum(own.values())[0]), rel=0.02)


def test_a_run_of_trials_moves_predictions_towards_its_times() -> None:
    space = load_space("llama_8b_dgx_h100")
    pricing, candidates = Pricing(space), Candidates(space)
    configs = candidates.draw(12, np.random.default_rng(1), [], 4)
    before = pricing.predict(configs)
    run = Run(Path("nowhere"))
    for number, config in enumerate(configs[:8]):
        slower = 1.4 * float(before.step_time_s[number])
        result = {"step_time_s": {"median": slower}}
        run.trials[number] = Trial(number, config, 0.0, kind="ok", objective=1.0, result=result)
    pricing.learn(run)
    after = pricing.predict(configs)
    ratio = after.step_time_s[8:] / before.step_time_s[8:]
    assert np.all(np.abs(ratio / 1.4 - 1) < 0.15)


def test_a_space_without_a_model_has_no_prices() -> None:
    with pytest.raises(NotPricedError, match="model"):
        Pricing(replace(load_space("llama_8b_dgx_h100"), model=None))
