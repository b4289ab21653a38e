"""Data parallelism and the sharding of training states: ZeRO and its kin.

Weights, gradients and optimizer states are sharded over some of the ranks with the same parameters
and replicated beyond (``trainer.plan.placement``): ZeRO stages (Rajbhandari et al. 2020), a
secondary copy (Wang et al. 2023), hierarchical sharding (Xu et al. 2025). Sharded weights are
gathered before each pass; gradients are scattered over the ranks that accumulate them and reduced
beyond; updated weights are gathered where they are sharded less than the optimizer states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trainer.plan.axes.mesh import RankGroup, Size
from trainer.plan.exchange import Exchange, Habits, Wire
from trainer.plan.jobs import Array, Jobs, Mask
from trainer.plan.states import Shards, in_flat_buckets


@dataclass(frozen=True)
class Holders:
    """Ranks that hold the same parameters of a class, and how they shard states.

    Dense parameters are held by all ranks of dp and cp, experts by fewer
    (``trainer.plan.axes.ep``).
    """

    size: Size  # ranks with the same parameters
    stride: Size  # distance of neighbours in rank numbers
    divisor: Size  # ranks over which model parallelism splits a layer's parameters
    placement: Shards  # shard degree of each state
    world: Size | None = None  # ranks of the job

    def group(self, size: Size, apart: Size = 1) -> RankGroup:
        """Groups of ``size`` holders, every ``apart``-th."""
        stride = np.broadcast_to(np.asarray(apart * self.stride, np.float64), np.shape(size))
        return RankGroup(size, stride, self.world)


def dense_holders(jobs: Jobs) -> Holders:
    """Holders of all parameters but experts."""
    axes, layer_ranks = jobs.layout.axes, jobs.layout.layer_ranks
    stride = axes.of_states.stride("dp")
    return Holders(axes.replicas, stride, layer_ranks, jobs.placement, axes.world_size)


class Wires(NamedTuple):
    """Bytes of n elements in each collective."""

    gather: Wire  # weights
    secondary: Wire  # weights from the secondary copy
    reduce: Wire  # gradients in a reduce-scatter
    total: Wire  # gradients in an all-reduce


def gathers_per_step(
    micro_batches: Any, has_copy: Any, passes: int = 2, refresh_each: Any = False
) -> tuple[Any, Any]:
    """All-gathers of weights per step: from the primary shards, and from the secondary copy.

    ``passes`` gather: forward and backward. ``refresh_each``: the copy is refreshed in every
    micro-batch, not once a step.
    """
    every = passes * micro_batches
    stored = np.where(has_copy, np.where(refresh_each, micro_batches, 1), every)
    return stored, every - stored


class StateExchanges(NamedTuple):
    """Exchanges of the states of one parameter class per step."""

    weights: Exchange  # all-gather from the primary shards
    secondary: Exchange  # all-gather from the secondary copy
    gradients: Exchange  # reduce-scatter over the ranks that accumulate them
    # once a step, reduce-scatter over the rest of the optimizer's sharding
    gradient_scatter: Exchange
    gradient_sum: Exchange  # all-reduce between ranks that update the same weights
    # all-gather of updated weights that are sharded less than the optimizer states
    publish: Exchange


class Cuts(NamedTuple):
    """Elements of each state on one rank."""

    stored: Size  # primary shards of the weights
    copied: Size  # secondary copy
    accumulated: Size  # accumulated gradients
    updated: Size  # weights updated by the optimizer


def state_exchanges(
    holders: Holders,
    degrees: Shards,
    cuts: Cuts,
    wires: Wires,
    gathers: tuple[Size, Size],
    reductions: Size,
    sums: Size = 1,
) -> StateExchanges:
    """Exchanges of one parameter class per step.

    ``degrees``: the holders' placement or a coarser one; ``cuts``: elements per rank; ``wires``:
    their bytes. Per step: ``gathers`` from the primary shards and from the copy, ``reductions`` of
    sharded gradients, ``sums`` between ranks that update the same weights.
    """
    weights, gradients = degrees.weight_shard, degrees.gradient_shard
    optimizer, copy = degrees.optimizer_shard, np.maximum(degrees.secondary_shard, 1)

    def gather(purpose: str, group: RankGroup, wire: Wire, part: Size, times: Size) -> Exchange:
        return Exchange(purpose, "all_gather", group, group.size * wire(part), times)

    def scatter(purpose: str, group: RankGroup, part: Size, times: Size) -> Exchange:
        whole = group.size * wires.reduce(part)
        return Exchange(purpose, "reduce_scatter", group, whole, times, "backward")

    group, updated = holders.group, cuts.updated
    others = group(holders.size / optimizer, optimizer)
    rest = group(optimizer / gradients, gradients)
    total = wires.total(updated)
    return StateExchanges(
        weights=gather("weights", group(weights), wires.gather, cuts.stored, gathers[0]),
        secondary=gather("secondary", group(copy), wires.secondary, cuts.copied, gathers[1]),
        gradients=scatter("gradients", group(gradients), cuts.accumulated, reductions),
        gradient_scatter=scatter("gradient_sync", rest, updated, 1),
        gradient_sum=Exchange("gradient_sync", "all_reduce", others, total, sums, "backward"),
        publish=gather("publish", group(optimizer / weights, weights), wires.gather, updated, 1),
    )


def in_buckets(jobs: Jobs, habits: Habits, holders: Holders) -> Mask:
    """Whether gradients are whole, or sharded in flat buckets beside whole weights."""
    degrees, bits = holders.placement, jobs.placement
    quantized = (bits.gather_bits > 0) | (bits.reduce_bits > 0)
    flat = habits.flat_buckets & np.asarray(in_flat_buckets(degrees, quantized))
    return np.asarray(flat | (degrees.gradient_shard == 1))


def reduces_every_time(jobs: Jobs, habits: Habits, holders: Holders) -> Mask:
    """Whether whole gradients are reduced after every micro-batch, not once a step."""
    whole = (holders.size > 1) & (holders.placement.optimizer_shard == 1)
    return np.asarray((jobs.layout.pp > 1) & whole & habits.gradients_synced_per_micro_batch)


def job_gathers(jobs: Jobs) -> tuple[Array, Array]:
    """``gathers_per_step`` of each job, where its weights are sharded."""
    placement = jobs.placement
    return gathers_per_step(
        jobs.layout.gas, placement.secondary_shard > 0, refresh_each=placement.renews_copy
    )


def job_exchanges(jobs: Jobs, habits: Habits, holders: Holders, weights: Array) -> StateExchanges:
    """Exchanges of ``weights`` parameters per rank, in the formats of job and framework.

    An all-reduce is never quantized, nor is anything of parameters whose gradients are whole.
    """
    degrees, placement = holders.placement, jobs.placement
    whole = degrees.gradient_shard == 1
    gather_bytes = np.where(whole, jobs.options.element_bytes, jobs.gather_bytes)
    held_bits = placement.secondary_bits
    held_bytes = np.where(held_bits > 0, held_bits / 8, gather_bytes)
    bits = placement.reduce_bits
    whole_bytes = np.maximum(jobs.options.element_bytes, habits.reduce_bytes)
    reduce_bytes = np.where((bits > 0) & ~whole, bits / 8, whole_bytes)
    split = degrees.weight_shard > 1
    stored, nearer = job_gathers(jobs)
    return state_exchanges(
        holders,
        degrees,
        Cuts(
            weights / degrees.weight_shard,
            weights / np.maximum(degrees.secondary_shard, 1),
            weights / degrees.gradient_shard,
            weights / degrees.optimizer_shard,
        ),
        Wires(
            lambda n: n * gather_bytes,
            lambda n: n * held_bytes,
            lambda n: n * reduce_bytes,
            lambda n: n * whole_bytes,
        ),
        (np.where(split, stored, 0.0), np.where(split, nearer, 0.0)),
        jobs.reductions,
        np.where(reduces_every_time(jobs, habits, holders), jobs.layout.gas, 1.0),
    )
