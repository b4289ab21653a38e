"""Pipeline parallelism: stages of layers, and schedules of micro-batches.

Each of ``pp`` ranks has ``vpp`` model chunks (``trainer.plan.stages``). The schedule decides how
many micro-batches a stage keeps in flight and how long it idles: 1F1B, plain or interleaved
(Narayanan et al. 2021, section 2.2), breadth-first (Lamy-Poirier 2022), zero bubble (Qi et al.
2023).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from trainer.plan.axes.tp import splits_sequence
from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import BREADTH_FIRST, ZERO_BUBBLE, ZERO_BUBBLE_V, Array, Jobs
from trainer.plan.layouts import NO_LAYOUT, parsed_layout


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
    left = np.where(jobs.repeats_layers, 1 / 2, 1 / 3)
    return np.where(jobs.defers_weight_gradients, left, 1.0)


def unfilled_turns(jobs: Jobs) -> Array:
    """Extra idle turns of a chunk with few micro-batches; a turn is its forward and backward pass.

    Breadth-first waits for the first micro-batch before each further chunk. Folded schedules need
    2 p - 1 micro-batches: each missing one costs two of a turn's three passes, less the p - 1 that
    the bubble absorbs; with recomputation two of four, on top of the bubble.
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
    gradients of stage s by s micro-batches, so every stage keeps pp. The folded schedule keeps pp
    as well (Qi et al. 2023, section 6).
    """
    plain = jobs.layout.pp - stage
    chunks = 2 * (plain - 1) + (jobs.layout.vpp - 1) * jobs.layout.pp + 1
    kept = _of_unlike_chunks(
        jobs, stage, np.where(jobs.layout.vpp > 1, chunks / jobs.layout.vpp, plain)
    )
    kept = np.where(jobs.options.schedule == ZERO_BUBBLE, np.maximum(kept, jobs.layout.pp), kept)
    kept = np.where(jobs.options.schedule == ZERO_BUBBLE_V, jobs.layout.pp, kept)
    kept = np.where(jobs.options.schedule == BREADTH_FIRST, jobs.layout.gas, kept)
    # A forward pass that hides another micro-batch's dispatch alternates with its backward pass,
    # layer by layer: one more is kept (Megatron Core, combined_1f1b and model_chunk_schedule_plan).
    more = jobs.layout.pp / jobs.model.num_layers
    kept = kept + np.where(jobs.options.overlaps_dispatch, more, 0.0)
    return np.maximum(np.minimum(kept, jobs.layout.gas), np.minimum(jobs.layout.gas, 1))


def _of_unlike_chunks(jobs: Jobs, stage: Array | int, alike: Array) -> Array:
    """Micro-batches in flight at ``stage`` where a layout gives a rank's chunks different numbers
    of layers; elsewhere ``alike``."""
    stages, layout = jobs.stages, jobs.layout
    rows = (stages.pipeline_layout != NO_LAYOUT) & (layout.vpp > 1)
    if not rows.any():
        return alike
    columns = (stages.pipeline_layout, layout.pp, layout.gas, np.broadcast_to(stage, rows.shape))
    own = np.vectorize(_kept_by_order, [float])(*(column[rows] for column in columns))
    kept = np.array(alike, dtype=float)
    kept[rows] = np.where(np.isnan(own), kept[rows], own)
    return kept


@lru_cache(maxsize=10_000)
def _kept_by_order(layout: str, pp: float, gas: float, stage: float) -> float:
    """Peak of micro-batches in flight in Megatron-LM's chunk order, weighted by layers.

    Forward passes take pp micro-batches through each chunk in turn, backward passes likewise from
    the last chunk on. NaN if the chunks are alike, or there is no such rank.
    """
    ranks, rank = int(pp), int(stage)
    chunks = parsed_layout(layout).layers_of_chunks(ranks)
    if not 0 <= rank < len(chunks) or len(set(chunks[rank])) == 1:
        return np.nan
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
