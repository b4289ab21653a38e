"""Bytes of a rank's training states: weights, their nearer copy, gradients, optimizer states.

Written once, for one placement or for columns of configurations; what differs between frameworks
is an argument. Torch-free.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

BUCKET_ELEMENTS = 16 * 2**20
"""Elements of a flat bucket, unless a configuration says else or one parameter has more."""
PENDING_REDUCTIONS = 2
"""Buckets of split gradients that may be on their way at once; each holds whole gradients."""
ZERO_STAGES = {"weight_shard": 3, "gradient_shard": 2, "optimizer_shard": 1}
"""Lowest stage of ZeRO that splits each state over all ranks (Rajbhandari et al. 2020)."""
Size = Any  # a number, or a numpy column that broadcasts against the others


class Shards(Protocol):
    """Data-parallel ranks that each state is split over; 1: not split, or 0: no secondary copy."""

    @property
    def weight_shard(self) -> Size: ...
    @property
    def secondary_shard(self) -> Size: ...
    @property
    def gradient_shard(self) -> Size: ...
    @property
    def optimizer_shard(self) -> Size: ...


class Degrees(NamedTuple):
    """The degrees of ``Shards`` by themselves."""

    weight_shard: Size
    secondary_shard: Size
    gradient_shard: Size
    optimizer_shard: Size


DEGREES = Degrees._fields


def in_flat_buckets(shards: Shards, quantized: Size) -> Size:
    """Whether whole weights can lie in flat buckets, which are split one way: ZeRO 0 to 2.

    Gradients are then whole, or split as the optimizer states are.

    Args:
        shards: of the states.
        quantized: whether weights or gradients are on their way.
    """
    alike = (shards.weight_shard == 1) & (shards.gradient_shard == shards.optimizer_shard)
    return (shards.gradient_shard == 1) | alike & np.logical_not(quantized)


def masters_are_weights(shards: Shards, in_float32: Size, in_buckets: Size) -> Size:
    """Whether weights and float32 master weights can be one copy, cast as it is gathered.

    In flat buckets, that is training in float32; else the weights must be split, and as their
    optimizer states are.

    Args:
        shards: of the states.
        in_float32: whether the computation is.
        in_buckets: whether whole weights lie in flat buckets.
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
    master_bytes: float = 12,
    extra_gradient_bytes: float = 0,
) -> dict[str, Size]:
    """Bytes of each state on one rank in steady state, without the layers in use.

    Xu et al. 2025, tables V and VI, and section III-B for the optimizer: with K = 12 bytes, master
    weights and two moments in float32.

    Args:
        parameters: of the model, or of the part that a rank's tp and pp leave it.
        shards: of the states.
        weight_bytes: of a weight that is computed with.
        secondary_bytes: of a weight in the secondary copy.
        gradient_bytes: of an accumulated gradient.
        one_copy: weights are the master weights, split as weights are; the optimizer's bytes.
        regathers: whole weights whose gradients are split less than the optimizer states are
            gathered from a copy that is split as the gradients are.
        master_bytes: of master weights and moments together.
        extra_gradient_bytes: of a second copy of the gradients, which is never split.
    """
    weights, gradients, optimizer = (
        shards.weight_shard,
        shards.gradient_shard,
        shards.optimizer_shard,
    )
    held = 1 / weights
    if regathers:
        between = (weights == 1) & (gradients > 1) & (gradients < optimizer)
        held = held + np.where(between, 1 / gradients, 0.0)
    copies = np.where(shards.secondary_shard > 0, shards.secondary_shard, np.inf)
    masters: Size = np.where(one_copy, weights, optimizer)
    return {
        "weights": np.where(one_copy, 0.0, weight_bytes * held) * parameters,
        "secondary": secondary_bytes / copies * parameters,
        "gradients": (gradient_bytes / gradients + extra_gradient_bytes) * parameters,
        "optimizer": (4 / masters + (master_bytes - 4) / optimizer) * parameters,
    }
