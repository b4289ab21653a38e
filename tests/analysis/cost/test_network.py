"""A network that is calm in most runs and crowded in some: two times of one configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.cost.fitted import cost_model
from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from analysis.cost.network import UNKNOWN, Network, quantile
from analysis.cost.step import step
from analysis.cost.time_constants import TimeConstants
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from trainer.plan.jobs import Jobs, jobs
from trainer.plan.model import ModelConfig

MEGATRON_BRIDGE = framework_named("megatron-bridge")
NANOTRON = framework_named("nanotron")

H100 = Cluster.named("dgx_h100")
SHAPE = ModelConfig(
    num_layers=32, hidden_size=4096, num_heads=32, vocab_size=32000, seq_length=4096
)


def pipelines(count: int) -> Jobs:
    rng = np.random.default_rng(5)
    tp, pp, dp, mbs = (2 ** rng.integers(low, high, count) for low, high in
                       ((0, 4), (1, 4), (1, 5), (0, 2)))  # fmt: skip
    return jobs({"tp": tp, "pp": pp, "dp": dp, "mbs": mbs, "gas": 256 / (dp * mbs)}, SHAPE)


def told(of: Jobs, times_s: np.ndarray) -> Measurements:
    return Measurements(of, times_s, np.full(len(of), np.nan), np.zeros(len(of), dtype=bool))


def test_a_calibration_tells_crowded_runs_from_calm_ones() -> None:
    """Half of the runs wait 0.6 s for each neighbour: neither half is taken for noise."""
    of, model = pipelines(60), CostModel(H100, NANOTRON)
    truth = TimeConstants(gemm_share=0.8, crowded_send_s=0.6, launch_s=2e-3)
    crowded = np.arange(60) % 2 == 1
    calm_s = step(of, H100, NANOTRON, truth).total
    measured_s = step(of, H100, NANOTRON, truth, crowded.astype(float)).total
    after = model.calibrated(told(of, measured_s))
    assert after.network.never < 0.1 < 0.9 < UNKNOWN.never
    prediction = after.predict(of)
    calm, late = prediction.states_s
    assert np.median(np.abs(calm / calm_s - 1)) < 0.05
    assert np.median(np.abs(late[crowded] / measured_s[crowded] - 1)) < 0.05
    low, high = prediction.interval_s()
    large = (
        of.layout.world_size >= 64
    )  # smaller ones are hardly ever crowded, as far as it believes
    assert np.mean((low < measured_s) & (measured_s < high), where=large) > 0.9


def test_calm_runs_make_a_crowded_network_less_probable() -> None:
    of, model = pipelines(40), CostModel(H100, NANOTRON, network=Network.known(never=0.5))
    times_s = model.predict(of).states_s[0]
    after = model.calibrated(told(of, times_s)).network
    assert after.never > 0.8
    assert np.all(after.crowded(of, H100) < model.network.crowded(of, H100))


@pytest.mark.parametrize("chance", [0.0, 0.02, 0.3, 1.0])
def test_an_interval_ends_where_its_share_of_the_runs_of_both_states_does(chance: float) -> None:
    rng, runs = np.random.default_rng(2), 100_000
    off = rng.standard_normal(runs)
    logs = np.where(rng.random(runs) < chance, 3.0, 1.0) + np.where(off < 0, 0.2, 0.5) * off
    one = np.ones(1)
    for share in (0.025, 0.5, 0.975):
        end = quantile(share, 1.0 * one, 3.0 * one, chance * one, (0.2 * one, 0.5 * one))[0]
        assert np.mean(logs < end) == pytest.approx(share, abs=0.003)


def test_the_more_nodes_the_more_often() -> None:
    of = jobs({"tp": 8, "pp": 2, "dp": 2.0 ** np.arange(6), "mbs": 1, "gas": 8}, SHAPE)
    chance = Network.known(never=0.0).crowded(of, H100)
    assert np.all(np.diff(chance) > 0)
    assert chance[0] < 0.1
    assert chance[-1] > 0.8


def test_what_is_promised_lies_between_both_states_and_ranks() -> None:
    """A job that nobody holds up is promised what it takes; one that may wait, less speed."""
    of = jobs({"tp": 8, "pp": [2, 1], "dp": [16, 32], "mbs": 1, "gas": [16, 8]}, SHAPE)
    model = CostModel(H100, NANOTRON, network=Network.known(never=0.2))
    prediction = model.predict(of)
    calm_s, crowded_s = prediction.states_s
    assert calm_s[0] < prediction.promised_s[0] < crowded_s[0]
    assert prediction.promised_s[1] / calm_s[1] < prediction.promised_s[0] / calm_s[0]
    sure = replace(model, network=Network.known(never=1.0)).predict(of)
    assert sure.promised_s == pytest.approx(sure.step_time_s)


def test_a_crowded_network_is_no_fact_of_a_machine() -> None:
    """What one framework met on one cluster is a belief about its next one, of any kind."""
    here, elsewhere = (cost_model(Cluster.named(name), NANOTRON) for name in ("dgx_h100", "alps"))
    assert here.network.never == elsewhere.network.never
    assert 0.2 < here.network.never < 0.6
    assert cost_model(H100, MEGATRON_BRIDGE).network is UNKNOWN
