"""Pipeline parallelism: stages of layers, and schedules of micro-batches.

Each of ``pp`` ranks has ``vpp`` model chunks (``trainer.plan.stages``). The schedule decides how
many micro-batches a stage keeps in flight and how long it idles: 1F1B, plain or interleaved
(Narayanan et al. 2021, section 2.2), breadth-first (Lamy-Poirier 2022), zero bubble (Qi et al.
2023).
"""

from __future__ import annotations

from functools import lru_cache
from typing import get_args

import numpy as np

from trainer.plan.axes.tp import splits_sequence
from trainer.plan.exchange import Exchange, Habits
from trainer.plan.fields import DEFERRING_SCHEDULES, FOLDED_SCHEDULES, PipelineSchedule
from trainer.plan.jobs import BREADTH_FIRST, DUAL_PIPE_V, ZERO_BUBBLE, ZERO_BUBBLE_V, Array, Jobs
from trainer.plan.layouts import NO_LAYOUT, parsed_layout
from trainer.plan.rules.requirement import Requirement

_WHOLE = [one for one in get_args(PipelineSchedule) if one not in DEFERRING_SCHEDULES]
"""Schedules that do not defer weight gradients."""
_WITHOUT_ROUNDS = ["LoopedBFS", *FOLDED_SCHEDULES]
_ZERO_BUBBLE = tuple(
    Requirement(
        f"zero_bubble_{name}",
        f"pp == 1 or pipeline_schedule in {_WHOLE} or {condition}",
        f"pipeline_schedule {{pipeline_schedule}} beside {words}; change it, or set "
        "pipeline_schedule: 1F1B",
        builtin_only=True,
    )
    for name, condition, words in (
        (
            "gas",
            "pipeline_schedule != 'InterleavedZeroBubble' or gas % pp == 0",
            "gas {gas}, which pp {pp} does not divide",
        ),
        (
            "chunks",
            "pipeline_schedule == 'InterleavedZeroBubble' or vpp == 2",
            "vpp {vpp}: each rank has two stages, of which the second ones go back; set vpp: 2",
        ),
        (
            "filled",
            "pipeline_schedule != 'DualPipeV' or gas >= 2 * pp",
            "gas {gas}, which is below its stages, 2 * pp {pp}",
        ),
        (
            "gradients",
            "gradient_shard == 1",
            "gradient_shard {gradient_shard}: split gradients leave behind a backward pass, before "
            "those of its weights are there",
        ),
        (
            "layers",
            "recompute != 'selective' and not compile",
            "recompute {recompute}, compile {compile}: its products are not by themselves",
        ),
        (
            "grid",
            "gx * gy * gz == 1",
            "the grid gx {gx}, gy {gy}, gz {gz}, whose order is its own",
        ),
    )
)
# Stages without given layers, and the layers that they share.
_SHARING = "(pp - (1 if first_stage_layers > 0 else 0) - (1 if last_stage_layers > 0 else 0))"
_LEFT = "(num_layers - first_stage_layers - last_stage_layers)"
REQUIREMENTS = (
    Requirement(
        "layers_by_stages",
        "first_stage_layers + last_stage_layers > 0 or num_layers % (pp * vpp) == 0",
        "not divisible: num_layers {num_layers} by pp {pp} * vpp {vpp}; give first_stage_layers or "
        "last_stage_layers what leaves the other stages equal shares",
    ),
    Requirement(
        "stage_layers_by_vpp",
        "first_stage_layers % vpp == 0 and last_stage_layers % vpp == 0",
        "not divisible: first_stage_layers {first_stage_layers} or last_stage_layers "
        "{last_stage_layers} by vpp {vpp}, a stage's chunks; make both multiples of it, or 0",
        builtin_only=True,
    ),
    Requirement(
        "layers_by_other_stages",
        f"first_stage_layers + last_stage_layers == 0 or ({_LEFT} > 0 and {_LEFT} % ({_SHARING} * "
        f"vpp) == 0 if {_SHARING} > 0 else {_LEFT} == 0)",
        "first_stage_layers {first_stage_layers} and last_stage_layers {last_stage_layers} of "
        "num_layers {num_layers}: what they leave is no equal share for each other stage of pp "
        "{pp} * vpp {vpp}; change one of them",
        builtin_only=True,
    ),
    # Interleaved 1F1B runs micro-batches in rounds of pp, breadth-first all at once.
    Requirement("interleaved_gas", "vpp == 1 or gas % pp == 0", others_only=True),
    Requirement(
        "interleaved_gas",
        f"vpp == 1 or gas % pp == 0 or pipeline_schedule in {_WITHOUT_ROUNDS}",
        "not divisible: gas {gas} by pp {pp} (interleaved schedule, vpp {vpp}); change gas, or set "
        "pipeline_schedule: LoopedBFS",
        builtin_only=True,
    ),
    *_ZERO_BUBBLE,
)


def neighbours(jobs: Jobs) -> Array:
    """Peers of an inner stage; in a pipeline of two each has one."""
    return np.minimum(jobs.layout.pp - 1, 2)


def rounds(jobs: Jobs) -> Array:
    """Chunk passes of a rank per step, warm-up and drain included."""
    return jobs.layout.gas * jobs.layout.vpp + jobs.layout.pp - 1


def message(jobs: Jobs, habits: Habits) -> Exchange:
    """A micro-batch's hidden states to the next stage, per neighbour, micro-batch and chunk;
    gradients come back in as many bytes."""
    share = np.where(splits_sequence(jobs, habits), jobs.layout.tp, 1.0)
    num_bytes = jobs.activation_bytes / share
    times = jobs.layout.gas * jobs.layout.vpp * neighbours(jobs)
    return Exchange("pipeline", "send", jobs.layout.axes.group("pp"), num_bytes, times)


def idle_share(jobs: Jobs) -> Array:
    """Fraction of 1F1B's bubble that is left when weight gradients are deferred.

    Qi et al. 2023, table 2, ZB-H1: (p - 1) (F + B - W) in place of (p - 1) (F + B + W), with
    equally long passes F (outputs), B (input gradients) and W (weight gradients); recomputation
    adds another F.
    """
    again = jobs.repeats_layers
    left = np.where(again, 1 / 2, 1 / 3)
    # DualPipeV ends with full backward passes on most ranks; torch does not overlap its pairs.
    whole = 3 / 4 - 1 / (4 * np.maximum(jobs.layout.pp - 1, 1))
    left = np.where((jobs.options.schedule == DUAL_PIPE_V) & again, whole, left)
    return np.where(jobs.defers_weight_gradients, left, 1.0)


def unfilled_turns(jobs: Jobs) -> Array:
    """Extra idle turns of a chunk with few micro-batches.

    Breadth-first waits for the first micro-batch before each further chunk. Folded schedules need 2
    p - 1 micro-batches: each missing one costs two passes, less what the bubble of p - 1 absorbs;
    with recomputation, one pass on top of the bubble.
    """
    m, p = jobs.layout.gas, jobs.layout.pp
    looped = np.maximum(p - m, 0) * (jobs.layout.vpp - 1)
    missing = np.maximum(2 * p - 1 - m, 0)
    again = jobs.repeats_layers
    folded = np.where(again, missing / 2, np.maximum(2 * missing - (p - 1), 0) / 3)
    return np.where(jobs.folded, folded, looped)


def in_flight(jobs: Jobs, stage: Array | int) -> Array:
    """Micro-batches whose activations a stage keeps.

    1F1B keeps ``pp - stage`` (Narayanan et al. 2021, section 2.2). Interleaved, a rank runs ``2 (pp
    - stage - 1) + (vpp - 1) pp`` chunks ahead and keeps one more (Korthikanti et al. 2022, section
    4.2.3). Breadth-first keeps all (Lamy-Poirier 2022). Torch's zero bubble delays the weight
    gradients of stage s by s micro-batches, so every stage keeps pp. Folded schedules keep pp as
    well (Qi et al. 2023, section 6), DualPipeV half a micro-batch more.
    """
    plain = jobs.layout.pp - stage
    chunks = 2 * (plain - 1) + (jobs.layout.vpp - 1) * jobs.layout.pp + 1
    kept = _of_unlike_chunks(
        jobs, stage, np.where(jobs.layout.vpp > 1, chunks / jobs.layout.vpp, plain)
    )
    kept = np.where(jobs.options.schedule == ZERO_BUBBLE, np.maximum(kept, jobs.layout.pp), kept)
    kept = np.where(jobs.options.schedule == ZERO_BUBBLE_V, jobs.layout.pp, kept)
    kept = np.where(jobs.options.schedule == DUAL_PIPE_V, jobs.layout.pp + 0.5, kept)
    kept = np.where(jobs.options.schedule == BREADTH_FIRST, jobs.layout.gas, kept)
    # A forward pass that hides another micro-batch's dispatch starts before that has ended.
    kept = kept + np.where(jobs.options.overlaps_dispatch, 1 / jobs.layout.vpp, 0.0)
    return np.maximum(np.minimum(kept, jobs.layout.gas), np.minimum(jobs.layout.gas, 1))


def _of_unlike_chunks(jobs: Jobs, stage: Array | int, alike: Array) -> Array:
    """Micro-batches in flight at ``stage`` where a layout gives a rank's chunks different numbers
    of layers; elsewhere ``alike``."""
    rows = (jobs.stages.pipeline_layout != NO_LAYOUT) & (jobs.layout.vpp > 1)
    if not rows.any():
        return alike
    columns = (
        jobs.stages.pipeline_layout,
        jobs.layout.pp,
        jobs.layout.gas,
        np.broadcast_to(stage, rows.shape),
    )
    keys = list(zip(*(column[rows].tolist() for column in columns), strict=True))
    found = {key: _kept_by_order(*key) for key in set(keys)}
    kept = np.array(alike, dtype=float)
    kept[rows] = [
        own if own is not None else kept
        for own, kept in zip((found[key] for key in keys), alike[rows], strict=True)
    ]
    return kept


@lru_cache(maxsize=10_000)
def _kept_by_order(layout: str, pp: float, gas: float, stage: float) -> float | None:
    """Peak of micro-batches in flight in Megatron-LM's chunk order, weighted by layers.

    Forward passes take pp micro-batches through each chunk in turn, backward passes likewise from
    the last chunk on. None if the chunks are alike, or there is no such rank.
    """
    ranks, rank = int(pp), int(stage)
    chunks = parsed_layout(layout).layers_of_chunks(ranks)
    if not 0 <= rank < len(chunks) or len(set(chunks[rank])) == 1:
        return None
    layers = chunks[rank]
    turn = ranks * len(layers)
    # The order is periodic: three turns include the peak.
    passes = int(min(gas * len(layers), 3 * turn))
    forward = [layers[i % turn // ranks] for i in range(passes)]
    backward = [layers[::-1][i % turn // ranks] for i in range(passes)]
    ahead = 2 * (ranks - rank - 1) + (len(layers) - 1) * ranks + 1
    kept = np.cumsum(forward)
    kept[ahead:] -= np.cumsum(backward)[: max(passes - ahead, 0)]
    return float(kept.max() / sum(layers))
