"""Memory of a job: states as the trainer places them, stages, peaks and probabilities."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.activations import layer_bytes
from analysis.cost.memory import MemoryConstants, memory, reported
from analysis.cost.memory_fit import MemoryModel
from analysis.cost.stages import fullest_stages, refused
from analysis.cost.state_memory import rank_state_bytes
from benchmarks.published.read import read_table
from search_spaces.frameworks import Framework
from search_spaces.known import FRAMEWORKS, framework_named
from support.gpt_jobs import gpt
from support.unit_exchanges import bytes_per_rank
from trainer.plan.axes.dp import dense_holders
from trainer.plan.formats import Format
from trainer.plan.jobs import (
    BREADTH_FIRST,
    FULL,
    LAYER_GRAPHS,
    NO_GRAPHS,
    ONE_F_ONE_B,
    SELECTIVE,
    STEP_GRAPHS,
    ZERO_BUBBLE,
    Jobs,
)
from trainer.plan.placement import Placement, Topology
from trainer.plan.presets import PRESETS, place
from trainer.plan.sizes import stage_weights
from trainer.plan.states import BUCKET_ELEMENTS, PENDING_REDUCTIONS

GIB = 2.0**30
PARAMETERS = 1_000_003
TRUTH = Path(__file__).parents[4] / "shared" / "truth"


def as_job(placement: Placement, precision: Format) -> Jobs:
    return gpt(
        tp=1,
        dp=placement.dp,
        zero_stage=-1,
        weight_shard=placement.weight_shard,
        gradient_shard=placement.gradient_shard,
        optimizer_shard=placement.optimizer_shard,
        secondary_shard=placement.secondary_shard,
        secondary_bits=placement.secondary_format.bits,
        element_bytes=precision.bits / 8,
    )


FREE = [
    {"weight_shard": 1, "gradient_shard": 4, "optimizer_shard": 16},
    {"weight_shard": 2, "gradient_shard": 8, "optimizer_shard": 16},
    {"weight_shard": 4, "gradient_shard": 16, "optimizer_shard": 16},
    {"weight_shard": 2, "gradient_shard": 2, "optimizer_shard": 2, "secondary_shard": 2},
    {"weight_shard": 16, "secondary_shard": 8, "quantize_secondary": True},
]


@pytest.mark.parametrize("precision", [Format.BF16, Format.FP32])
@pytest.mark.parametrize("dp", [1, 16])
def test_states_equal_the_trainers_placement(dp: int, precision: Format) -> None:
    topology = Topology(ranks_per_node=8, ranks_per_pair=2)
    placements = [place(preset, {}, dp, 1, topology, precision) for preset in PRESETS]
    if dp == 16:
        placements += [place("zero0", wish, dp, 1, topology, precision) for wish in FREE]
    for placement in placements:
        job = as_job(placement, precision)
        held = np.array([PARAMETERS]), job, framework_named("meshtune"), dense_holders(job)
        made = rank_state_bytes(*held)
        wanted = bytes_per_rank(placement, PARAMETERS, precision=precision)
        assert {name: float(value[0]) for name, value in made.items()} == pytest.approx(wanted)


MEGATRON = FRAMEWORKS["megatron-lm"]


def test_1f1b_keeps_fewer_micro_batches_on_later_stages_and_never_more_than_there_are() -> None:
    job = gpt(pp=8, gas=np.array([3, 64]))
    first, second, last = fullest_stages(job, MEGATRON)
    assert first.in_flight.tolist() == [3, 8]
    assert second.in_flight.tolist() == [3, 7]
    assert last.in_flight.tolist() == [1, 1]
    interleaved = fullest_stages(gpt(pp=8, vpp=3, gas=64), MEGATRON)[0]
    assert interleaved.in_flight[0] / 8 == pytest.approx(1 + 7 / 24)


def test_breadth_first_keeps_all_micro_batches() -> None:
    job = gpt(pp=4, gas=16, schedule=np.array([ONE_F_ONE_B, BREADTH_FIRST, ZERO_BUBBLE]))
    first, second, last = (stage.in_flight.tolist() for stage in fullest_stages(job, MEGATRON))
    assert (first, second, last) == ([4, 16, 4], [3, 16, 4], [1, 16, 4])


def test_buckets_of_split_gradients_are_as_large_as_the_job_says() -> None:
    """Those that the trainer fills: three at a time, and no smaller than the largest matrix."""
    sizes = np.array([BUCKET_ELEMENTS, 4 * BUCKET_ELEMENTS, 1])
    shape = {"hidden_size": 2048, "ffn_size": 2048, "vocab_size": 128, "seq_length": 128}
    job = gpt(dp=8, mbs=1, tp=1, pp=1, zero_stage=2, num_layers=48, **shape, bucket_elements=sizes)
    habits = framework_named("meshtune")
    usual, large, small = memory(job, habits, MemoryConstants()).working
    in_transit = (1 + PENDING_REDUCTIONS) * habits.reduce_bytes
    assert large - usual == pytest.approx(in_transit * 3 * BUCKET_ELEMENTS)
    assert usual - small == pytest.approx(in_transit * (BUCKET_ELEMENTS - 2048 * 2048))


def test_gradients_that_are_reduced_once_are_whole_until_then() -> None:
    job = gpt(dp=8, gas=np.array([1, 4, 4]), zero_stage=np.array([2, 2, 1]), tp=1)
    once = replace(job, placement=replace(job.placement, reduces_once=np.ones(3, bool)))
    habits = framework_named("meshtune")
    more = (
        memory(once, habits, MemoryConstants()).gradients
        - memory(job, habits, MemoryConstants()).gradients
    )
    parameters = memory(job, habits, MemoryConstants()).gradients[2] / 4  # whole, in float32
    # The share of a whole sum in flat buckets is a part of it; other frameworks' is a copy.
    assert more == pytest.approx([0, 4 * parameters * (1 - 1 / 8), 0])
    others = habits.with_habits(flat_buckets=False)
    more = (
        memory(once, others, MemoryConstants()).gradients
        - memory(job, others, MemoryConstants()).gradients
    )
    assert more == pytest.approx([0, 4 * parameters, 0])


def test_of_layers_that_pp_does_not_divide_the_first_stages_have_more() -> None:
    first, second, last = fullest_stages(gpt(num_layers=6, pp=np.array([4, 6, 7, 8])), MEGATRON)
    assert first.layers.tolist() == [2, 1, 1, 1]
    assert second.layers.tolist() == [2, 1, 1, 1]
    assert last.layers.tolist() == [1, 1, 0, 0]


def test_stages_by_weight_count_the_output_layer() -> None:
    # 16 layers and an output layer that weighs four: 20 layers' weights over four stages.
    job = gpt(num_layers=16, hidden_size=2048, ffn_size=8192, gated=True, vocab_size=131072, pp=4)
    first, _, last = fullest_stages(job, framework_named("nanotron"))
    assert first.layers[0] == 5
    assert last.layers[0] == 1


def test_a_framework_that_fills_its_pipeline_refuses_few_micro_batches_and_empty_stages() -> None:
    job = gpt(pp=np.array([4, 4, 64]), gas=np.array([2, 3, 64]), num_layers=16)
    assert refused(job, framework_named("nanotron")).tolist() == [True, False, True]
    assert not refused(job, MEGATRON).any()
    assert MemoryModel().fits(job, framework_named("nanotron"), 1e15).tolist() == [0, 1, 0]


def test_the_last_stage_decides_where_the_vocabulary_is_large() -> None:
    job = gpt(num_layers=8, pp=2, gas=2, vocab_size=np.array([1000, 500_000]), sequence_parallel=1)
    parts = memory(job, MEGATRON, MemoryConstants())
    assert parts.logits[0] == 0
    assert parts.logits[1] == pytest.approx(8 * 2048 * 4 * 500_000 / 8)


def test_logits_and_a_recomputed_layer_are_not_in_memory_at_once() -> None:
    job = gpt(num_layers=4, recompute=FULL, vocab_size=np.array([1000, 500_000]))
    parts = memory(job, MEGATRON, MemoryConstants())
    assert parts.working[0] > 0 and parts.logits[0] < parts.working[0]
    assert parts.working[1] == 0 and parts.logits[1] > parts.working[0]


def test_weights_that_were_made_flat_are_reported_and_can_be_given_back() -> None:
    habits = framework_named("deepspeed-bf16-2022")
    without = habits.with_habits(freed_weight_bytes=0)
    job = gpt(num_layers=4, dp=2, zero_stage=1)
    peaks = [reported(job, p, MemoryConstants())[0] for p in (without, habits)]
    assert peaks[1] - peaks[0] == pytest.approx(2 * stage_weights(job.model, 4, 1, job.layout.tp))
    short = [memory(job, p, MemoryConstants()).total for p in (without, habits)]
    assert short[0] == short[1]


def test_a_step_copies_gradients_where_activations_were() -> None:
    habits = framework_named("megatron-deepspeed-2022")
    without = habits.with_habits(step_gradient_bytes=(0, 0))
    job = gpt(num_layers=4, mbs=np.array([1, 64]), seq_length=256, dp=2, zero_stage=1)
    added = [memory(job, p, MemoryConstants()) for p in (without, habits)]
    more = added[1].total - added[0].total
    copies = 6 / 2 * stage_weights(job.model, 4, 1, job.layout.tp)
    freed = added[0].activations + added[0].working + added[0].logits
    assert more[0] == pytest.approx(copies[0] - freed[0])
    assert more[1] == 0, "activations need more than the copies"


def test_no_published_run_of_megatron_deepspeed_is_thought_not_to_fit() -> None:
    path = TRUTH / "a100_vtrain_multi_node.csv"
    if not path.exists():
        pytest.skip(f"needs the published table {path}")
    table = read_table(path)
    assert table is not None
    limit = next(iter(table.clusters.values())).memory_bytes
    fits = MemoryModel().fits(table.jobs, framework_named("megatron-deepspeed-2022"), limit)
    assert fits.min() > 0.9


def test_split_weights_are_whole_for_two_layers_or_as_far_as_a_framework_allows() -> None:
    job = gpt(num_layers=8, tp=1, dp=64, zero_stage=3)
    matrix, layer, table = 4 * 6144**2, 12 * 6144**2, 51200 * 6144

    def working(habits: Framework) -> float:
        return float(memory(job, habits, MemoryConstants()).working[0])

    plain = Framework(name="plain", logits_bytes=1e6)  # nothing of the layer is beside the logits
    assert working(plain) == pytest.approx(2 * (2 * layer + table))
    assert working(plain.with_habits(live_parameters=6e8)) == pytest.approx(2 * 6e8)
    assert working(plain.with_habits(live_parameters=1)) == pytest.approx(2 * max(matrix, table))


def test_a_stream_that_reduces_by_itself_uses_no_memory_that_logits_left() -> None:
    """A copy of its bucket, or of the largest matrix, beside these gradients; with ZeRO 3 only."""
    matrix, layer, table = 4 * 6144**2, 12 * 6144**2, 51200 * 6144

    def more(bucket: float, stage: int = 3) -> float:
        job = gpt(num_layers=8, tp=1, dp=64, zero_stage=stage)
        shared = Framework(name="plain", logits_bytes=1e6, reduce_bytes=4)
        apart = shared.with_habits(reduced_apart=bucket)
        a, b = (memory(job, habits, MemoryConstants()).total[0] for habits in (shared, apart))
        return float(b - a)

    assert more(5e8) == pytest.approx((2 + 4) * 5e8)
    assert more(1) == pytest.approx((2 + 4) * max(matrix, table))
    assert more(1e12) == pytest.approx((2 + 4) * (8 * layer + table))
    assert more(5e8, stage=2) == 0


def test_an_optimizer_that_is_always_sharded_is_so_without_zero() -> None:
    habits = framework_named("deepspeed-bf16")
    each = [memory(gpt(num_layers=4, dp=4, zero_stage=stage), habits, MemoryConstants())
            for stage in (0, 1, 2)]  # fmt: skip
    weights = stage_weights(gpt().model, 4, 1, 8)
    assert each[0].optimizer == each[1].optimizer == pytest.approx(12 / 4 * weights)
    assert [float(parts.gradients[0]) for parts in each] == pytest.approx(
        [6 * float(weights[0]), 2 * float(weights[0]), 2 / 4 * float(weights[0])]
    )
    whole = memory(
        gpt(num_layers=4, dp=4, zero_stage=0, element_bytes=4), habits, MemoryConstants()
    )
    assert whole.optimizer == pytest.approx(12 * weights), "of 16-bit weights only"
    lean = habits.with_habits(master_bytes=0, moment_bytes=2)
    parts = memory(gpt(num_layers=4, dp=4, zero_stage=1), lean, MemoryConstants())
    assert parts.optimizer == pytest.approx(4 / 4 * weights)


def test_graphs_of_a_whole_step_hold_what_is_stated() -> None:
    habits = framework_named("megatron-lm").with_habits(step_graph_bytes=38e9)
    jobs = gpt(num_layers=4, graphs=np.array([NO_GRAPHS, LAYER_GRAPHS, STEP_GRAPHS]))
    total = memory(jobs, habits, MemoryConstants()).total
    assert total - total[0] == pytest.approx([0, 0, 38e9])


def test_segments_that_grow_leave_no_block_too_small() -> None:
    habits, jobs = framework_named("megatron-lm"), gpt(num_layers=4, tp=4, sequence_parallel=1)
    constants = MemoryConstants(hole_share=0.2)
    grows = memory(jobs, habits.with_habits(expandable_segments=True), constants)
    saved = memory(jobs, habits, constants).buffers - grows.buffers
    assert saved == pytest.approx(0.2 * grows.activations * 3 / 4)


def test_torchtitan_keeps_every_second_product_and_a_pipelines_weights() -> None:
    habits = framework_named("torchtitan")
    llama = {
        "num_layers": 32,
        "hidden_size": 4096,
        "num_heads": 32,
        "kv_heads": 8,
        "ffn_size": 14336,
        "gated": True,
        "tp": 1,
    }
    job = gpt(**llama, mbs=1, seq_length=8192, recompute=SELECTIVE)
    kept = layer_bytes(job, habits, job.options.recompute)[0] / 8192
    # Layer's input, queries, values, attention's output and its denominators, gate, output.
    assert kept == 2 * (4096 + 4096 + 1024 + 4096 + 14336 + 4096) + 4 * 32
    piped = gpt(**llama, pp=np.array([1, 2]), dp=8, gas=8, zero_stage=3)
    parts = memory(piped, habits, MemoryConstants())
    assert parts.weights[0] == 0, "cast from float32 as they are gathered"
    assert parts.gradients[1] == 2 * parts.weights[1] > parts.gradients[0]


def test_torchtitans_published_peaks_are_foretold_without_any_fit() -> None:
    path = TRUTH / "torchtitan_llama3.csv"
    if not path.exists():
        pytest.skip(f"needs the published table {path}")
    table = read_table(path)
    assert table is not None
    peaks = MemoryModel().peak_bytes(table.jobs, framework_named("torchtitan"))
    off = np.abs(peaks / table.peak_bytes - 1)
    alone = (table.jobs.layout.tp == 1) & (table.cluster == "dgx_h100/96GiB")
    assert alone.sum() == 10 and table.jobs.options.fp8[alone].sum() == 6
    assert off[alone].max() < 0.11  # in 16 and 8 bits, from 8,192 to 262,144 tokens
    assert off.mean() < 0.17  # with tensor parallelism, pipelines, and the loss of a later release


def test_states_that_tensor_parallelism_does_not_split_are_those_of_whole_layers() -> None:
    """Transformers' FSDP: ranks of a tensor-parallel group hold the same parts (TRL's runs)."""
    fsdp = framework_named("fsdp")
    one, two, four = (
        memory(gpt(tp=tp, dp=8, zero_stage=3), fsdp, MemoryConstants()) for tp in (1, 2, 4)
    )
    for each in (two, four):
        assert [*each.optimizer, *each.gradients] == pytest.approx([*one.optimizer, *one.gradients])
    assert two.activations < one.activations
    # What is not sharded at all is of the rank's part: ZeRO-2's weights.
    one, two = (memory(gpt(tp=tp, dp=8, zero_stage=2), fsdp, MemoryConstants()) for tp in (1, 2))
    assert two.weights[0] == pytest.approx(one.weights[0] / 2, rel=0.01)
    assert [*two.optimizer, *two.gradients] == pytest.approx([*one.optimizer, *one.gradients])


def test_parts_sum_to_the_total_and_cover_whatever_a_row_asks_for() -> None:
    job = gpt(pp=np.array([1, 4, 4]), zero_stage=np.array([3, 1, 0]), dp=8, recompute=FULL)
    parts = memory(job, framework_named("fsdp"), MemoryConstants())
    assert np.allclose(sum(parts.as_dict().values()), parts.total)
    assert parts.working[0] > parts.working[1], "split weights are gathered layer by layer"
    one_by_one = [
        memory(job[i : i + 1], framework_named("fsdp"), MemoryConstants()) for i in range(3)
    ]
    assert np.allclose([p.total[0] for p in one_by_one], parts.total)


def test_counters_differ_by_what_they_see() -> None:
    job = gpt(dp=4, zero_stage=1, sequence_parallel=True)
    figures = [
        reported(job, Framework(name="any", reports=what), MemoryConstants())[0][0]
        for what in ("allocated", "reserved", "device")
    ]
    assert figures == sorted(figures)
    assert len(set(figures)) == 3


def test_memory_grows_with_the_micro_batch_and_falls_with_more_shards() -> None:
    for known in FRAMEWORKS.values():
        by_batch = memory(gpt(mbs=np.array([1, 2, 4])), known, MemoryConstants()).total
        assert np.all(np.diff(by_batch) > 0), known.name
        stages = gpt(dp=8, zero_stage=np.array([0, 1, 2]))
        assert np.all(np.diff(memory(stages, known, MemoryConstants()).total) <= 0), known.name


def test_all_rows_are_computed_at_once() -> None:
    job = gpt(mbs=np.tile([1.0, 2.0], 5_000), pp=np.repeat([1.0, 2.0], 5_000))
    assert memory(job, MEGATRON, MemoryConstants()).total.shape == (10_000,)
    assert MemoryModel().fits(job, MEGATRON, 80 * GIB).shape == (10_000,)
