"""One collective, or message, of training: who sends how much to whom, how often, behind what.

Axes state theirs (``trainer.plan.axes``). The cost model prices them, and tests compare them with
the counters of real ranks. Sizes are numbers, or numpy columns. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

from trainer.plan.axes.mesh import RankGroup, Size

Operation = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send"]
_TIMES_AROUND = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}
Pass = Literal["forward", "backward", "repeated"]
"""Part of a layer's work on one micro-batch; repeated: what the backward pass computes again."""
Work = Literal["", "products", "attention", "attention_backward", "layer", "layer_backward"]
"""Work that an exchange can hide behind: none; a layer's matrix products of both passes; attention,
or the whole layer, in one pass (a repeated forward pass is one as well)."""


class Habits(Protocol):
    """Differences between frameworks in their exchanges; see ``search_spaces.Framework``."""

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
    """Share of a tensor that a rank sends in one way around a ring: (d - 1) / d.

    That of an all-gather, and of a reduce-scatter; an all-reduce is both (Patarasuk and Yuan 2009;
    Thakur et al. 2005).

    Args:
        ranks: d, a number or a column.
    """
    return (ranks - 1) / ranks


def all_reduce_bytes(num_bytes: int, ranks: int) -> int:
    """Bytes that each of ``ranks`` ranks sends in an all-reduce: twice around, in whole bytes."""
    return 2 * (ranks - 1) * num_bytes // ranks


@dataclass(frozen=True)
class Exchange:
    """A collective, or a message from rank to rank.

    Attributes:
        purpose: under which the trainer's counters have it.
        operation: which collective.
        group: its ranks.
        num_bytes: of the whole tensor: gathered, or before it is scattered or summed; of a message.
        times: per layer and micro-batch, or per step.
        within: the pass of a layer that it belongs to.
        behind: computation that it can hide behind.
    """

    purpose: str
    operation: Operation
    group: RankGroup
    num_bytes: Size
    times: Size = 1
    within: Pass = "forward"
    behind: Work = ""

    @property
    def once_bytes(self) -> Size:
        """Bytes that each rank sends once; nothing in a group of one."""
        if self.operation == "send":
            return self.num_bytes
        ranks = self.group.size
        return _TIMES_AROUND[self.operation] * (ranks - 1) * self.num_bytes / ranks

    @property
    def sent_bytes(self) -> Size:
        """Bytes that each rank sends in all its times."""
        return self.once_bytes * self.times

    def repeated(self, times: Size) -> Self:
        """The exchange so many times as often."""
        return replace(self, times=self.times * times)
