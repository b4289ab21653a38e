"""What a cost model takes over from one that was calibrated with another run."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from analysis.cost.constants import TRANSFER
from analysis.cost.fitted import OF_FRAMEWORK, OF_GPU
from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from analysis.cost.time_constants import TimeConstants
from analysis.cost.warm_start import discounted, shared, taken_over
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from trainer.plan.jobs import Jobs, jobs

ALL = [f.name for f in fields(TimeConstants)]
NETWORK = [name for name in ALL if name not in (*OF_FRAMEWORK, *OF_GPU)]


def model(cluster: str, framework: str, **constants: float) -> CostModel:
    start = CostModel(Cluster.named(cluster), framework_named(framework))
    return replace(start, constants=replace(start.constants, **constants))


SHAPE = {
    "num_layers": 12, "hidden_size": 1024, "num_heads": 16, "kv_heads": 16, "ffn_size": 4096,
    "gated": False, "tied_embeddings": True, "vocab_size": 32000, "seq_length": 2048, "gas": 4,
}  # fmt: skip


def one_gpu() -> Jobs:
    """Nothing here says anything of a network."""
    mbs = np.array([1, 2, 4, 8, 16, 32])
    return jobs({**SHAPE, "tp": 1, "pp": 1, "dp": 1, "mbs": mbs, "zero_stage": 0})


def measured(of: CostModel) -> Measurements:
    told = of.predict(one_gpu())
    return Measurements(told.jobs, told.step_time_s, told.peak_bytes, np.zeros(6, dtype=bool))


def test_constants_go_with_their_framework_their_gpu_and_their_network() -> None:
    own = model("dgx_a100", "nanotron")
    assert shared(own, model("dgx_a100", "nanotron")) == ALL
    assert {*shared(own, model("dgx_h100", "nanotron"))} == {*OF_FRAMEWORK}
    assert {*shared(own, model("perlmutter", "fsdp"))} == {*OF_GPU}  # A100s, too
    assert {*shared(own, model("dgx_a100", "fsdp"))} == {*OF_GPU, *NETWORK}
    assert shared(own, model("dgx_h100", "fsdp")) == []


def test_what_is_not_shared_stays_with_its_uncertainty() -> None:
    own = model("dgx_a100", "nanotron")
    other = model("dgx_h100", "nanotron", step_s=0.1, gemm_share=0.5, inter_node_share=0.1)
    other = replace(other, covariance=np.full((len(ALL),) * 2, 0.001) + 0.01 * np.eye(len(ALL)))
    found = taken_over(own, other)
    assert found.constants.step_s == 0.1
    assert found.constants.gemm_share == own.constants.gemm_share
    assert found.constants.inter_node_share == own.constants.inter_node_share
    assert found.covariance is not None
    for name, spread in zip(ALL, TimeConstants.spreads(), strict=True):
        at = ALL.index(name)
        expected = 0.011 if name in OF_FRAMEWORK else spread**2
        assert found.covariance[at, at] == pytest.approx(expected)
    assert (found.cluster, found.framework) == (own.cluster, own.framework)


def test_memory_goes_with_the_framework() -> None:
    other = model("dgx_h100", "nanotron")
    learnt = replace(other, memory=replace(other.memory, log_sd=0.01))
    assert taken_over(model("dgx_a100", "nanotron"), learnt).memory == learnt.memory
    own = model("dgx_h100", "fsdp")
    assert taken_over(own, learnt).memory == own.memory


def test_what_a_run_does_not_speak_of_is_as_unsure_after_many_runs_as_before() -> None:
    """Each calibration starts wider than what is known, and that must not add up."""
    at = ALL.index("inter_node_share")
    start = replace(model("dgx_a100", "fsdp"), covariance=0.01 * np.eye(len(ALL)))
    found = start
    for _ in range(3):
        found = discounted(found.calibrated(measured(start)), found)
    assert found.covariance is not None and found.memory.covariance is not None
    assert found.covariance[at, at] == pytest.approx(0.01, rel=0.01)
    assert np.all(np.linalg.eigvalsh(found.covariance) < 0.01 * 1.01)
    assert found.covariance[ALL.index("launch_s"), ALL.index("launch_s")] < 0.005


def test_what_earlier_runs_left_open_is_no_wider_than_before_any() -> None:
    first = TimeConstants.covariance()
    learnt, at = first.copy(), ALL.index("gemm_share")
    learnt[at, at] /= 10_000
    found = TimeConstants.transferred(learnt)
    assert found is not None and np.all(np.diag(found) <= np.diag(first))
    assert found[at, at] == pytest.approx(TRANSFER**2 * learnt[at, at], rel=0.01)
    assert TimeConstants.transferred(None) is None


def test_one_slow_trial_moves_nothing_that_earlier_runs_left_open() -> None:
    """They were of one GPU each: any network could explain it."""
    start = model("dgx_a100", "fsdp")
    known = start.calibrated(measured(start))
    tp = np.array([2, 1, 8])
    asked = jobs({**SHAPE, "tp": tp, "pp": 1, "dp": 16 // tp, "mbs": 4, "zero_stage": 0})
    expected_s = known.predict(asked).step_time_s
    nothing = np.array([np.nan]), np.zeros(1, dtype=bool)
    found = known.calibrated(Measurements(asked[np.array([0])], 3 * expected_s[:1], *nothing))
    assert np.all(found.predict(asked).step_time_s < 1.1 * expected_s)


def test_a_narrow_run_makes_no_model_surer_of_other_runs() -> None:
    own = model("dgx_a100", "fsdp")
    narrow = replace(own, log_sd=own.log_sd / 5)
    assert taken_over(own, narrow).log_sd == own.log_sd
    wide = replace(own, log_sd=own.log_sd * 2)
    assert taken_over(own, wide).log_sd == wide.log_sd
    tailed = replace(own, tail_log_sd=own.log_sd * 3)
    assert taken_over(own, tailed).tail_log_sd == tailed.tail_log_sd
    learnt = own.calibrated(measured(own))
    assert taken_over(own, learnt).foreign and not learnt.foreign


def test_a_run_without_a_usable_trial_teaches_nothing() -> None:
    start = replace(model("dgx_a100", "fsdp"), covariance=0.01 * np.eye(len(ALL)))
    nothing = Measurements(one_gpu(), *[np.full(6, np.nan)] * 2, np.zeros(6, dtype=bool))
    found = discounted(start.calibrated(nothing), start)
    assert found.covariance is start.covariance and found.constants == start.constants
