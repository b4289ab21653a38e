"""Bytes of training states per rank: weights, secondary copy, gradients, optimizer. Torch-free.

Numbers or columns; differences between frameworks are arguments.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

BUCKET_ELEMENTS = 16 * 2**20
"""Default size of a flat bucket; a larger parameter is a bucket by itself."""
PENDING_REDUCTIONS = 2  # gradient buckets in flight at once; each holds unreduced gradients
ZERO_STAGES = {"weight_shard": 3, "gradient_shard": 2, "optimizer_shard": 1}
"""Lowest ZeRO stage that shards each state over all ranks (Rajbhandari et al. 2020)."""
Size = Any  # a number, or a numpy column that broadcasts against the others


class Shards(Protocol):
    """Shard degree of each state; 1: replicated; 0: no secondary copy."""

    @property
    def weight_shard(self) -> Size: ...
    @property
    def secondary_shard(self) -> Size: ...
    @property
    def gradient_shard(self) -> Size: ...
    @property
    def optimizer_shard(self) -> Size: ...


class Degrees(NamedTuple):
    weight_shard: Size
    secondary_shard: Size
    gradient_shard: Size
    optimizer_shard: Size


DEGREES = Degrees._fields


def degree_among(degree: Size, fewer: Size, holders: Size) -> Size:
    """Shard degree of parameters that only one in ``fewer`` of the ranks holds, ``holders`` in all:
    a state that is sharded over all ranks is sharded over all holders."""
    return np.where(degree > 1, np.clip(degree / fewer, 1, np.maximum(holders, 1)), degree)


def in_flat_buckets(shards: Shards, quantized: Size) -> Size:
    """Whether weights can lie whole in flat buckets (ZeRO 0 to 2).

    Gradients are then whole, or sharded as the optimizer states are. ``quantized``: weights or
    gradients are quantized in collectives.
    """
    alike = (shards.weight_shard == 1) & (shards.gradient_shard == shards.optimizer_shard)
    return (shards.gradient_shard == 1) | alike & np.logical_not(quantized)


def masters_are_weights(shards: Shards, in_float32: Size, in_buckets: Size) -> Size:
    """Whether weights double as float32 master weights, cast when gathered.

    In flat buckets if training is in float32; else if weights and optimizer states are sharded
    alike.
    """
    split = shards.weight_shard > 1
    stored = np.where(split, shards.weight_shard, shards.gradient_shard)
    alike = split & (stored == shards.optimizer_shard)
    return np.where(in_buckets, in_float32, alike)


def state_bytes(
    parameters: Size,
    shards: Shards,
    *,
    weight_bytes: Size,
    secondary_bytes: Size,
    gradient_bytes: float,
    one_copy: Size,
    regathers: bool = True,
    master_bytes: float = 4,
    moment_bytes: float = 4,
    extra_gradient_bytes: Size = 0,
) -> dict[str, Size]:
    """Bytes of each state on one rank between layers.

    Xu et al. 2025, tables V and VI; section III-B for K = 12 bytes of master weights and moments.

    Args:
        parameters: of the rank, after tp and pp.
        one_copy: weights are the master weights, counted with the optimizer.
        regathers: replicated weights whose gradients are sharded less than the optimizer states
            also keep a copy sharded as the gradients.
        master_bytes, moment_bytes: of a master weight, and of each of AdamW's two moments.
        extra_gradient_bytes: second copy of the gradients, never sharded.
    """
    weights = shards.weight_shard
    gradients = shards.gradient_shard
    optimizer = shards.optimizer_shard
    held = 1 / weights
    if regathers:
        between = (weights == 1) & (gradients > 1) & (gradients < optimizer)
        held = held + np.where(between, 1 / gradients, 0.0)
    copies = np.where(shards.secondary_shard > 0, shards.secondary_shard, np.inf)
    masters: Size = np.where(
        one_copy, np.maximum(master_bytes, weight_bytes) / weights, master_bytes / optimizer
    )
    return {
        "weights": np.where(one_copy, 0.0, weight_bytes * held) * parameters,
        "secondary": secondary_bytes / copies * parameters,
        "gradients": (gradient_bytes / gradients + extra_gradient_bytes) * parameters,
        "optimizer": (masters + 2 * moment_bytes / optimizer) * parameters,
    }
