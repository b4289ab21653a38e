"""The cost model as a whole: trends that the literature reports, calibration, uncertainty."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.cost.constants import log_sds
from analysis.cost.memory_fit import Measurements
from analysis.cost.model import UNSEEN_LOG_SD, CostModel
from analysis.cost.step import step
from analysis.cost.time_constants import TimeConstants
from search_spaces import __file__ as spaces
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from trainer.plan import flops
from trainer.plan.jobs import BREADTH_FIRST, FULL, Jobs, jobs
from trainer.plan.model import ModelConfig

MEGATRON_DEEPSPEED = framework_named("megatron-deepspeed")
MEGATRON_LM = framework_named("megatron-lm")
MESHTUNE = framework_named("meshtune")
NANOTRON = framework_named("nanotron")

SHAPES = {"22b": (48, 6144, 48), "175b": (96, 12288, 96), "1t": (128, 25600, 128)}


def cluster(name: str) -> Cluster:
    path = Path(spaces).parent / "clusters" / f"{name}.yaml"
    return Cluster.model_validate(yaml.safe_load(path.read_text()))


def shape(name: str, seq_length: int = 2048) -> ModelConfig:
    layers, hidden, heads = SHAPES[name]
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        vocab_size=51200,
        seq_length=seq_length,
    )


def frontier(name: str, **columns: Any) -> np.ndarray:
    """Hardware TFLOP/s per GCD of Megatron-DeepSpeed, as Dash et al. 2023 train."""
    given = {"recompute": FULL, "zero_stage": 1, "vpp": 1, **columns}
    of = jobs(given, shape(name))
    seconds = step(of, cluster("frontier"), MEGATRON_DEEPSPEED).total
    needed = flops.hardware_flops(of.model, of.global_batch, of.recompute_words)
    return np.asarray(needed / seconds / of.layout.world_size / 1e12)


def test_flops_of_columns_are_those_of_each_model() -> None:
    model = shape("22b").model_copy(
        update={"activation": "swiglu", "num_kv_heads": 8, "ffn_hidden_size": 16384}
    )
    of = jobs({"tp": 2, "pp": 2, "dp": 3, "mbs": 2, "gas": 5, "recompute": FULL}, model)
    assert flops.model_flops(of.model, of.global_batch)[0] == flops.model_flops(model, 30)
    executed = flops.hardware_flops(of.model, of.global_batch, of.recompute_words)
    assert executed[0] == flops.hardware_flops(model, 30, "full")


def test_parts_add_up_and_none_is_negative() -> None:
    of = some_jobs(500)
    parts = step(of, cluster("dgx_h100"), NANOTRON)
    assert all(np.all(part >= 0) for part in parts.as_dict().values())
    np.testing.assert_allclose(sum(parts.as_dict().values()), parts.total)


def test_breadth_first_waits_before_each_further_chunk_where_micro_batches_are_few() -> None:
    """Of p - m idle turns a chunk of v, Lamy-Poirier 2022: none from as many as stages on."""
    of = jobs(
        {"tp": 8, "pp": 4, "dp": 1, "mbs": 1, "vpp": 2, "gas": [1, 2, 3, 4, 8], "schedule": 1},
        shape("22b"),
    )
    assert (of.options.schedule == BREADTH_FIRST).all()
    bubble = step(of, cluster("frontier"), MESHTUNE, TimeConstants()).bubble
    turns = np.diff(bubble)
    assert turns[:3] == pytest.approx(turns[0]) and turns[0] < 0
    assert turns[3] == pytest.approx(0)
    # Four stages of equal layers and a head: a turn is a chunk of one of them.
    assert -turns[0] == pytest.approx(bubble[4] / 3, rel=0.1)


def test_updated_weights_hide_behind_the_next_forward_pass_where_they_do() -> None:
    """In frameworks that wait for them layer by layer; where weights are whole, in flat buckets."""
    of = jobs(
        {"tp": 8, "pp": 1, "dp": 8, "mbs": [1, 1, 1, 64], "gas": 1, "zero_stage": [0, 1, 2, 1]},
        shape("22b"),
    )
    on, c = cluster("frontier"), TimeConstants()
    waits = MESHTUNE.with_habits(overlaps_publish=False)
    loose = MESHTUNE.with_habits(flat_buckets=False, owners_send=True)
    told = [step(of, on, framework, c) for framework in (waits, MESHTUNE, loose)]
    every, exposed, by_layer = (parts.publish for parts in told)
    assert every[0] == exposed[0] == 0 and every[1] == every[3] > 0
    assert exposed[2] == exposed[1] and every[2] > 0
    assert by_layer[2] == pytest.approx(every[2] + 7 * c.owner_s)
    forward = (told[0].forward_backward + told[0].launch) / 3
    assert exposed[1] == pytest.approx(every[1] - on.overlap * forward[1])
    assert exposed[3] == pytest.approx(0.05 * every[3])
    others = ("forward_backward", "gather", "gradients", "optimizer", "bubble")
    for name in others:
        np.testing.assert_array_equal(getattr(told[0], name), getattr(told[1], name))


# Observations of Dash et al. 2023, section III, all at a fixed number of GPUs or batch.


def test_larger_tensor_parallel_degrees_are_slower() -> None:
    """Observation III.1 and figure 6."""
    rates = frontier("22b", tp=[1, 2, 4, 8], pp=8, dp=1, mbs=1, gas=64)
    assert np.all(np.diff(rates) < 0)


def test_throughput_rises_with_the_batch_and_saturates() -> None:
    """Observation III.2 and figure 7: the bubble's share falls as micro-batches fill it."""
    rates = frontier("22b", tp=2, pp=8, dp=4, mbs=1, gas=[8, 16, 32, 64, 128, 256])
    gains = np.diff(rates)
    assert np.all(gains > 0)
    assert np.all(np.diff(gains) < 0)


def test_more_stages_at_a_fixed_batch_are_slower() -> None:
    """Observation III.3 and figure 8 (left): the bubble grows."""
    rates = frontier("175b", tp=8, pp=[4, 8, 16, 32], dp=1, mbs=1, gas=64)
    assert np.all(np.diff(rates) < 0)


def test_stages_cost_nothing_at_a_fixed_ratio_to_micro_batches() -> None:
    """Observation III.4 and figure 8 (right). The output layer leaves a slope: the more stages,
    the more the last one has beyond the others."""
    pp = np.array([4, 8, 16, 32])
    fixed_ratio = frontier("175b", tp=8, pp=pp, dp=1, mbs=1, gas=8 * pp)
    fixed_batch = frontier("175b", tp=8, pp=pp, dp=1, mbs=1, gas=32)
    assert fixed_ratio[-1] / fixed_ratio[0] > 0.9
    assert fixed_batch[-1] / fixed_batch[0] < 0.7


def test_ranks_that_share_processors_do_not_pay_for_a_bubble() -> None:
    own = cluster("dgx_h100")
    shared = own.model_copy(update={"shared_by": 2})

    def total(pp: int, gas: int, on: Cluster) -> float:
        parts = step(
            jobs({"tp": 1, "dp": 1, "pp": pp, "gas": gas, "mbs": 1, "vpp": 1}, shape("22b")),
            on,
            NANOTRON,
        )
        compute = (parts.forward_backward, parts.launch, parts.head, parts.bubble)
        return float(sum(part[0] for part in compute))

    assert total(4, 2, own) > 1.3 * total(4, 32, own) / 16  # the bubble of three in two
    assert total(4, 2, shared) == pytest.approx(total(4, 2, own) / 2)  # mostly one or two are busy
    assert total(4, 32, shared) == pytest.approx(total(4, 32, own), rel=0.2)  # all are
    assert total(4, 32, shared) < total(4, 32, own)
    assert total(1, 8, shared) == pytest.approx(total(1, 8, own))


@pytest.mark.parametrize(("name", "tp", "pp", "gas"), [("175b", 4, 16, 640), ("1t", 8, 64, 1600)])
def test_weak_scaling_is_whole_and_strong_scaling_nearly(
    name: str, tp: int, pp: int, gas: int
) -> None:
    """Section V-C: 100 % weak, 89 and 87 % strong scaling on 1024 and 3072 GPUs."""
    dp = np.array([2, 4, 6, 8, 16])
    weak = frontier(name, tp=tp, pp=pp, dp=dp, mbs=1, gas=gas)
    assert np.all(weak / weak[0] > 0.97)
    whole = gas * 16
    strong = frontier(name, tp=tp, pp=pp, dp=dp, mbs=1, gas=whole // 6 // dp * 1.0)
    assert 0.8 < strong[-1] / strong[0] < 0.98


def some_jobs(count: int) -> Jobs:
    random = np.random.default_rng(3)
    tp, pp = 2.0 ** random.integers(0, 4, count), 2.0 ** random.integers(0, 4, count)
    dp = 2.0 ** random.integers(0, 5, count)
    columns = {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "mbs": 2.0 ** random.integers(0, 4, count),
        "gas": 2.0 ** random.integers(0, 6, count),
        "zero_stage": random.integers(0, 4, count),
        "recompute": random.integers(0, 3, count),
        "sequence_parallel": tp > 1,
    }
    return jobs(columns, shape("22b"))


def test_eight_trials_remove_most_of_a_bias() -> None:
    """Another machine in truth: slower products, slower links, a slower host."""
    of = some_jobs(300)
    model = CostModel(cluster("dgx_h100"), MEGATRON_LM)
    truth = TimeConstants(gemm_share=0.7, inner_size=180, node_share=0.5, launch_s=2e-3, step_s=0.1)
    true = step(of, model.cluster, model.framework, truth).total
    trials = slice(0, 8)
    nan = np.full(8, np.nan)
    measurements = Measurements(of[trials], true[trials], nan, np.zeros(8, dtype=bool))
    before, after = model.predict(of), model.calibrated(measurements).predict(of)
    rest = slice(8, None)

    def error(predicted: np.ndarray) -> float:
        return float(np.mean(np.abs(predicted[rest] / true[rest] - 1)))

    assert error(after.step_time_s) < 0.35 * error(before.step_time_s)
    assert np.all(np.median(after.time_log_sds, axis=1) < np.median(before.time_log_sds, axis=1))
    low, high = after.interval_s()
    assert np.mean((true[rest] > low[rest]) & (true[rest] < high[rest])) > 0.85


def test_what_counts_for_little_at_its_median_widens_the_interval_by_its_edge() -> None:
    """A network's latency: nothing beside a long step, most of a short one when it is at its worst.

    Derivatives at the median would say a tenth of it.
    """
    constants = TimeConstants()
    names = [f.name for f in fields(TimeConstants)]
    at = names.index("send_s")
    covariance = np.zeros((len(names), len(names)))
    covariance[at, at] = 3.0**2

    def logarithm(c: TimeConstants) -> np.ndarray:
        return np.log(1e-3 + c.send_s * np.ones(1))

    edge = np.log((1e-3 + 1e-4 * np.exp(3.0 * 1.96)) / 1.1e-3)
    (down,), (up,) = log_sds(constants, covariance, logarithm)
    assert up == pytest.approx(edge / 1.96)
    assert edge / 1.96 > 5 * 3.0 * 1e-4 / 1.1e-3
    # Without it a step is no shorter than the rest of it.
    assert 0.9 * np.log(1.1) < 1.96 * down < np.log(1.1)


def test_an_uncertain_share_of_a_rate_reaches_all_of_it_at_most() -> None:
    """And one that a fit puts above 1, for want of another term, no more than that."""
    names = [f.name for f in fields(TimeConstants)]
    at = names.index("node_share")
    covariance = np.zeros((len(names), len(names)))
    covariance[at, at] = 0.5**2

    def logarithm(c: TimeConstants) -> np.ndarray:
        return -np.log(c.node_share * np.ones(1))

    (down,), (up,) = log_sds(TimeConstants(node_share=0.8), covariance, logarithm)
    assert 1.96 * down == pytest.approx(np.log(1 / 0.8)) and up == pytest.approx(0.5)
    (down,), (up,) = log_sds(TimeConstants(node_share=1.2), covariance, logarithm)
    assert down == 0 and up == pytest.approx(0.5)


def test_an_interval_holds_slow_runs_as_often_as_there_were_and_is_wider_of_another_model() -> None:
    of, none = some_jobs(60), np.full(60, np.nan)
    model = CostModel(cluster("dgx_h100"), MEGATRON_LM)
    rng = np.random.default_rng(4)
    slow = np.where(np.arange(60) % 8 == 0, 1.5, 1.0) * np.exp(0.03 * rng.standard_normal(60))
    times_s = model.predict(of).step_time_s * slow
    after = model.calibrated(Measurements(of, times_s, none, none > 0))
    assert after.tail_log_sd > 2 * after.log_sd
    known = replace(model, log_sd=0.05, tail_log_sd=0.2)  # by models that a fit was tried without
    one = known.calibrated(Measurements(of[:1], times_s[:1], none[:1], none[:1] > 0))
    assert 0.15 < one.tail_log_sd < 0.2  # a first run does not undo it
    low, high = after.predict(of).interval_s()
    assert np.mean((low < times_s) & (times_s < high)) > 0.9
    own, other = after.time_log_sds(of), replace(after, foreign=True).time_log_sds(of)
    assert all(np.all(wide > near) for wide, near in zip(other, own, strict=True))


def test_before_any_evidence_a_job_that_leaves_its_node_is_less_sure() -> None:
    of = jobs({"tp": 1, "pp": 1, "dp": [8, 512], "mbs": 1, "gas": 1, "zero_stage": 3}, shape("22b"))
    inside, outside = CostModel(cluster("dgx_h100"), MEGATRON_LM).predict(of).time_log_sds[1]
    assert outside > 1.2 * inside > 1.2 * UNSEEN_LOG_SD


def test_one_absurd_trial_does_not_carry_the_model_away() -> None:
    of = some_jobs(60)
    model = CostModel(cluster("dgx_h100"), MEGATRON_LM)
    true = model.predict(of).step_time_s * 1.1
    told = true[:10].copy()
    told[4] *= 30
    nan = np.full(10, np.nan)
    measurements = Measurements(of[:10], told, nan, np.zeros(10, dtype=bool))
    after = model.calibrated(measurements).predict(of)
    assert np.mean(np.abs(after.step_time_s[10:] / true[10:] - 1)) < 0.06


def test_nothing_usable_changes_nothing() -> None:
    of = some_jobs(3)
    model = CostModel(cluster("dgx_h100"), MEGATRON_LM)
    nan = np.full(3, np.nan)
    failed = np.ones(3, dtype=bool)
    after = model.calibrated(Measurements(of, nan, nan, failed))
    assert after.constants == model.constants
    assert after.log_sd == model.log_sd


def test_more_memory_never_makes_a_job_less_likely_to_fit() -> None:
    of = some_jobs(200)
    small = CostModel(cluster("perlmutter"), MEGATRON_LM)
    large = CostModel(small.cluster.model_copy(update={"memory_gib": 80.0}), small.framework)
    assert np.all(large.predict(of).fits >= small.predict(of).fits - 1e-12)


@pytest.mark.parametrize("columns", [{"zero_stage": 3}, {"cp": 8}, {"cp": 8, "zero_stage": 3}])
def test_a_faster_gpu_does_not_slow_a_step_that_waits_for_its_host(columns: dict[str, Any]) -> None:
    """While it waits, gathers, reductions and a ring go on."""
    small = ModelConfig(
        num_layers=12, hidden_size=768, num_heads=12, vocab_size=50304, seq_length=8192
    )
    given = {"tp": 2, "pp": 1, "mbs": 1, "gas": 64, "world_size": 32, "zero_stage": 0}
    of = jobs(given | {"recompute": FULL} | columns, small)
    slow = cluster("dgx_h100")
    faster = {name: 2 * getattr(slow, name) for name in ("memory_gb_per_s", "gemm_bf16_tflops")}
    machines = slow, slow.model_copy(update=faster)
    before, after = (step(of, machine, MEGATRON_LM) for machine in machines)
    assert after.launch > before.launch > 0.3 * before.forward_backward
    assert after.total < before.total


def test_states_hide_behind_their_own_stage_though_another_is_the_slowest() -> None:
    """Of stages with 4, 4, 4 and 1 layers the last has a large output layer and little to send."""
    uneven = ModelConfig(
        num_layers=13, hidden_size=1024, num_heads=8, vocab_size=262144, seq_length=4096
    )
    given = {"tp": 1, "pp": 4, "dp": 16, "mbs": 4, "gas": 8, "zero_stage": 1}
    of, on = jobs(given | {"last_stage_layers": 1}, uneven), cluster("dgx_h100")
    hidden, shown = (
        step(of, on, MEGATRON_LM.with_habits(overlaps_gradients=overlaps))
        for overlaps in (True, False)
    )
    assert hidden.head > 10 * hidden.forward_backward
    assert hidden.gradients == pytest.approx(0.05 * shown.gradients)
