"""One collective or point-to-point message of training. Sizes are numbers or columns. Torch-free.

Axes declare theirs (``trainer.plan.axes``); the cost model prices them, and tests compare them with
counters of real ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trainer.plan.axes.mesh import RankGroup, Size

Operation = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"]
Pass = Literal["forward", "backward", "repeated"]
"""Pass of a layer on one micro-batch; repeated: the recomputed forward pass."""
Work = Literal["", "products", "attention", "attention_backward", "layer", "layer_backward"]
"""Computation that can hide an exchange: none; a layer's matrix products in both passes; attention
or a whole layer in one pass, recomputed or not."""
Wire = Callable[[Size], Size]  # bytes of n elements in a collective


class Habits(Protocol):
    """How a framework communicates; see ``search_spaces.Framework``."""

    @property
    def sequence_parallel(self) -> bool: ...
    @property
    def repeated_sums(self) -> float: ...
    @property
    def overlaps_tensor(self) -> bool: ...
    @property
    def reduce_bytes(self) -> float: ...
    @property
    def flat_buckets(self) -> bool: ...
    @property
    def gradients_synced_per_micro_batch(self) -> bool: ...
    @property
    def sends_tokens_once(self) -> bool: ...


def share_sent(ranks: Any) -> Any:
    """Fraction of a tensor that each of d ranks sends once around a ring (Thakur et al. 2005)."""
    return (ranks - 1) / ranks


@dataclass(frozen=True)
class Exchange:
    """A collective, or a message from rank to rank."""

    purpose: str  # key in the trainer's traffic counters
    operation: Operation
    group: RankGroup
    num_bytes: Size  # the whole tensor (gathered, or before scattering or summing), or the message
    times: Size = 1  # per layer and micro-batch, or per step
    within: Pass = "forward"  # pass of the layer
    behind: Work = ""  # computation that can hide it
    fused: Size = 0  # how many of ``times`` are fused with a product
