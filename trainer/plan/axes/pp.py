"""Pipeline parallelism: layers split into stages, micro-batches passed from stage to stage.

Each of ``pp`` ranks has ``vpp`` chunks of layers; ``stages`` says which. The schedule decides how
many micro-batches a stage keeps in memory and how long it waits: 1F1B, plain or interleaved
(Narayanan et al. 2021, section 2.2), breadth-first (Lamy-Poirier 2022), and those that compute
weights' gradients apart (Qi et al. 2023).
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
"""Schedules whose backward passes are whole."""
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
            "recompute != 'selective' and not compile and precision != 'fp8'",
            "recompute {recompute}, compile {compile}, precision {precision}: its products are not "
            "by themselves",
        ),
        (
            "grid",
            "gx * gy * gz == 1",
            "the grid gx {gx}, gy {gy}, gz {gz}, whose order is its own",
        ),
    )
)
# Stages whose layers are not given, and what they share.
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
    # Interleaved 1F1B hands micro-batches out in rounds of pp; breadth-first knows no rounds.
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
    """Stages that one in the middle talks to; in a pipeline of two each has one."""
    return np.minimum(jobs.layout.pp - 1, 2)


def rounds(jobs: Jobs) -> Array:
    """Times that a micro-batch passes a chunk of a rank, filling and draining included."""
    return jobs.layout.gas * jobs.layout.vpp + jobs.layout.pp - 1


def message(jobs: Jobs, habits: Habits) -> Exchange:
    """A micro-batch's activations to the next stage; their gradients come back in as many bytes.

    It is sent once for each neighbour, micro-batch and chunk.
    """
    share = np.where(splits_sequence(jobs, habits), jobs.layout.tp, 1.0)
    num_bytes = jobs.activation_bytes / share
    times = jobs.layout.gas * jobs.layout.vpp * neighbours(jobs)
    return Exchange("pipeline", "send", jobs.layout.axes.group("pp"), num_bytes, times)


def tied_embedding(jobs: Jobs, weights: float) -> Exchange:
    """Gradients of so many weights of a tied table, summed between the first and the last stage."""
    group = jobs.layout.axes.group("pp", np.full(len(jobs), 2.0), jobs.layout.pp - 1)
    return Exchange("embedding", "all_reduce", group, 4 * weights)


def idle_share(jobs: Jobs) -> Array:
    """Share of the bubble that is left where weights' gradients are computed apart.

    Qi et al. 2023, table 2, ZB-H1: (p - 1) (F + B - W) in place of (p - 1) (F + B + W), with a pass
    each for outputs (F), gradients of inputs (B) and of weights (W), equally long; another F where
    layers are recomputed.
    """
    again = jobs.repeats_layers
    left = np.where(again, 1 / 2, 1 / 3)
    # DualPipeV ends with whole backward passes on most ranks; torch does not overlap its pairs.
    whole = 3 / 4 - 1 / (4 * np.maximum(jobs.layout.pp - 1, 1))
    left = np.where((jobs.options.schedule == DUAL_PIPE_V) & again, whole, left)
    return np.where(jobs.defers_weight_gradients, left, 1.0)


def unfilled_turns(jobs: Jobs) -> Array:
    """Further turns of a chunk that are idle where micro-batches are few.

    Breadth-first waits for the first of them before each further chunk. Folded stages are filled by
    2 p - 1 of them: each that is missing is a wait of two passes, as far as the bubble of p - 1 has
    not room for it; where layers are recomputed, of one beside the bubble.
    """
    m, p = jobs.layout.gas, jobs.layout.pp
    looped = np.maximum(p - m, 0) * (jobs.layout.vpp - 1)
    missing = np.maximum(2 * p - 1 - m, 0)
    again = jobs.repeats_layers
    folded = np.where(again, missing / 2, np.maximum(2 * missing - (p - 1), 0) / 3)
    return np.where(jobs.folded, folded, looped)


def in_flight(jobs: Jobs, stage: Array | int) -> Array:
    """1F1B keeps ``pp - stage`` micro-batches (Narayanan et al. 2021, section 2.2).

    Interleaved, a rank runs ``2 (pp - stage - 1) + (vpp - 1) pp`` chunks ahead and keeps one more;
    on the first stage that is ``1 + (pp - 1) / (pp vpp)`` of a whole model's share (Korthikanti et
    al. 2022, section 4.2.3). Breadth-first, all forward passes come first (Lamy-Poirier
    2022). Zero bubble as torch has it delays the weights' products of stage s by s micro-batches,
    whose operands stay, so that every stage keeps pp. Folded, each rank keeps pp as well (Qi et al.
    2023, section 6), DualPipeV one chunk of two more.
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
    # The forward pass that hides another one's tokens begins before that has ended.
    kept = kept + np.where(jobs.options.overlaps_dispatch, 1 / jobs.layout.vpp, 0.0)
    return np.maximum(np.minimum(kept, jobs.layout.gas), np.minimum(jobs.layout.gas, 1))


def _of_unlike_chunks(jobs: Jobs, stage: Array | int, alike: Array) -> Array:
    """Micro-batches in flight where a layout gives chunks of a rank unlike numbers of layers.

    Args:
        jobs: of any stages.
        stage: its number.
        alike: micro-batches in flight if its chunks are alike.
    """
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
    """The most that a rank keeps in the order in which Megatron-LM runs its chunks, in
    micro-batches of all its layers; None where they are alike, or it has no such rank.

    Forward passes run through pp micro-batches of each chunk in turn, backward passes likewise
    from the last chunk on; how far the former are ahead is as in :func:`in_flight`.
    """
    ranks, rank = int(pp), int(stage)
    chunks = parsed_layout(layout).layers_of_chunks(ranks)
    if not 0 <= rank < len(chunks) or len(set(chunks[rank])) == 1:
        return None
    layers = chunks[rank]
    turn = ranks * len(layers)
    # Each turn is as the one before: three in all are enough to see the most.
    passes = int(min(gas * len(layers), 3 * turn))
    forward = [layers[i % turn // ranks] for i in range(passes)]
    backward = [layers[::-1][i % turn // ranks] for i in range(passes)]
    ahead = 2 * (ranks - rank - 1) + (len(layers) - 1) * ranks + 1
    kept = np.cumsum(forward)
    kept[ahead:] -= np.cumsum(backward)[: max(passes - ahead, 0)]
    return float(kept.max() / sum(layers))
