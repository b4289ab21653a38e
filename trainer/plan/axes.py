"""Parallel axes: their order, their sizes, what each splits, and which ranks are a group.

The mesh, spaces, the cost model and landscapes read the same record. Sizes are whole numbers, or
numpy columns of them where many configurations are meant; torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from trainer.plan.fields import RankOrder

Size = Any  # int, or a numpy column

SPLITS = {
    "tp": "each layer's matrices, and with sequence parallelism its activations",
    "dp": "the batch, and as the placement says weights, gradients and optimizer states",
    "pp": "layers, into stages",
}
"""The axes that the trainer and the cost model know, innermost first, and what each splits.

Tensor-parallel ranks are neighbours, so that they share a node; pipeline stages are farthest apart,
since they talk least (Narayanan et al. 2021, section 3), unless ``RankOrder`` says otherwise.
"""
RANK_ORDERS: tuple[RankOrder, ...] = get_args(RankOrder)
"""Orders of the axes on ranks, innermost first.

The second keeps a pipeline's stages within a node and spreads replicas over nodes. Ranks of cp and
dp hold the same weights and are therefore neighbours in both; Megatron-LM's
``--use-tp-pp-dp-mapping`` differs from the second only in that it leaves cp beside tp.
"""
_OF_COPIES = ("cp", "dp")
FURTHER_AXES = {"cp": "every sequence, and with it activations: ``trainer.parallel.context``"}
"""Axes that they know as well, between tp and dp; 1 where a configuration says nothing."""


GRID = {
    "gx": "each layer's outputs, and of every second layer the inputs",
    "gy": "each layer's inputs, and of every second layer the outputs",
    "gz": "the batch within a replica, and of each layer's weights what gx and gy leave",
}
"""Axes of the built-in trainer's three-dimensional tensor parallelism, innermost first.

Singh et al. 2024, section V-A. They stand where a user's own axes do, and only where one of them
has several ranks.
"""


def ordered(own: Sequence[str] = ()) -> tuple[str, ...]:
    """All axes, innermost first; those of a user's own trainer lie between tp and dp."""
    innermost, *others = SPLITS
    return (innermost, *own, *others)


def is_pp_inside(rank_order: Any) -> Any:
    """Whether pp counts before cp and dp in an order, or in each of a column of them."""
    return rank_order == "tp-pp-cp-dp"


def beside_dp(own: Sequence[str] = ()) -> tuple[str, ...]:
    """The axes that a configuration has degrees of; dp is what they leave of the ranks."""
    return tuple(name for name in ordered(own) if name != "dp")


def ranks_of_replica(degrees: Mapping[str, Size], own: Sequence[str] = ()) -> Size:
    """Ranks that hold one replica: the product of all degrees but dp."""
    return math.prod(degrees[name] for name in beside_dp(own))


@dataclass(frozen=True)
class Axes:
    """Sizes by axis, innermost first: rank 1 is beside rank 0 on the first axis.

    Attributes:
        sizes: of every axis; a rank's number counts through them, the first one fastest.
        pp_inside: the last axis, pp, counts before cp and dp: ``tp-pp-cp-dp``. One for all jobs, or
            a numpy column.
    """

    sizes: Mapping[str, Size]
    pp_inside: Size = False

    @property
    def of_states(self) -> Axes:
        """The same with one axis ``dp`` of all ranks that hold the same weights.

        Those of context parallelism see other tokens, and reduce gradients and split states
        together with the data-parallel ones, as in Megatron.
        """
        sizes = {name: size for name, size in self.sizes.items() if name != "cp"}
        sizes["dp"] = sizes["dp"] * self.sizes.get("cp", 1)
        return Axes(sizes, self.pp_inside)

    @property
    def world_size(self) -> Size:
        """Ranks of the job."""
        return math.prod(self.sizes.values())

    def stride(self, name: str) -> Size:
        """From one rank of an axis to the next: ranks of all axes inside it."""
        names = [*self.sizes]
        place = names.index(name)
        inner = math.prod(self.sizes[one] for one in names[:place])
        first = next((i for i, one in enumerate(names) if one in _OF_COPIES), len(names))
        # To the power of a truth value: only where that is so.
        if name == "pp":
            outside = math.prod(self.sizes[one] for one in names[first:place])
            return inner // outside**self.pp_inside
        if place >= first:
            return inner * self.sizes.get("pp", 1) ** self.pp_inside
        return inner

    @property
    def outermost_first(self) -> tuple[str, ...]:
        """The axes as nested loops over all ranks would stand, of one job."""
        return tuple(sorted(self.sizes, key=self.stride, reverse=True))

    def place(self, rank: int, name: str) -> int:
        """Where a rank stands on an axis."""
        return int(rank // self.stride(name) % self.sizes[name])

    def groups(self, name: str, size: int | None = None, apart: int = 1) -> list[list[int]]:
        """Ranks of all groups of so many ranks of an axis; they tile it.

        Args:
            name: of the axis.
            size: ranks of a group; default all of the axis.
            apart: of its members, along the axis: blocks of ``size * apart`` ranks are each cut
                into ``apart`` groups.
        """
        span = (size or self.sizes[name]) * apart
        stride, whole = self.stride(name), self.sizes[name]
        firsts = [block + i for block in range(0, whole, span) for i in range(apart)]
        return [
            [outer + place * stride + inner for place in range(first, first + span, apart)]
            for outer in range(0, self.world_size, whole * stride)
            for inner in range(stride)
            for first in firsts
        ]

    def group_of(self, rank: int, name: str, size: int | None = None, apart: int = 1) -> range:
        """The ranks of this rank's own group among ``groups``."""
        span, stride = (size or self.sizes[name]) * apart, self.stride(name)
        own = self.place(rank, name)
        first = rank + (own // span * span + own % apart - own) * stride
        return range(first, first + span * stride, apart * stride)
