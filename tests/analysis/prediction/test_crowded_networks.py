"""What a search makes of a network that may be crowded: models drawn for batches, time limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.cost.network import Network
from analysis.prediction.pricing import Pricing
from analysis.prediction.start_up import StartUp
from search_spaces import SearchSpace, load_space

WIDE_PIPELINE = {"num_nodes": 8, "tp": 8, "pp": 2, "mbs": 1, "gas": 64}


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> SearchSpace:
    path = tmp_path_factory.mktemp("space") / "wide.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: [1, 8], tp: [8], pp: [1, 2], mbs: [1], gas: [64]}\n"
        "objective: {maximize: tokens_per_second_per_gpu}\n"
    )
    return load_space(str(path))


def test_a_drawn_model_is_of_one_network_as_often_as_it_is_believed(space: SearchSpace) -> None:
    model = replace(Pricing(space).model, network=Network.known(never=0.5))
    rng = np.random.default_rng(0)
    networks = [model.drawn(rng).network for _ in range(200)]
    assert {tuple(network.weights) for network in networks} == {(1.0,)}
    assert 0.4 < np.mean([network.never for network in networks]) < 0.6
    assert len({float(network.nodes[0]) for network in networks}) > 3


def test_a_trial_that_a_crowded_network_would_end_is_as_likely_to_end_in_time_as_it_is_calm(
    space: SearchSpace,
) -> None:
    pricing = Pricing(space)
    pricing.model = replace(pricing.model, network=Network.known(never=0.6), log_sd=0.02)
    prediction = pricing.predict([WIDE_PIPELINE])
    calm_s, crowded_s = (float(state_s[0]) for state_s in prediction.states_s)
    crowded = float(prediction.crowded[0])
    assert crowded_s > 1.5 * calm_s and 0.02 < crowded < 0.4
    steps = 10_000  # beside which starting is nothing

    def chance(longest_s: float) -> float:
        timeout_s = StartUp.expected(space).base_s + steps * longest_s
        limits = {
            "timeout_s": timeout_s,
            "no_progress_timeout_s": None,
            "warmup_steps": 0,
            "measured_steps": steps,
        }
        hasty = replace(space, trial=space.trial.model_copy(update=limits))
        return float(Pricing(hasty).in_time(prediction)[0])

    assert chance(0.8 * calm_s) == pytest.approx(0, abs=1e-3)
    assert chance(np.sqrt(calm_s * crowded_s)) == pytest.approx(1 - crowded, abs=1e-3)
    assert chance(1.2 * crowded_s) == pytest.approx(1, abs=1e-3)
