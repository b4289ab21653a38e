"""The mesh of ranks: order and sizes of the parallel axes, strides and groups.

The trainer, spaces and the cost model read the same record. Sizes are whole numbers, or numpy
columns of them for many configurations. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from trainer.plan.fields import RankOrder

Size = Any  # int, or a numpy column

TENSOR, REPLICAS, PIPELINE = "tp", "dp", "pp"
"""The axes of every job, innermost first.

Tensor-parallel ranks are neighbours, so that they share a node; pipeline stages are farthest apart,
since they talk least (Narayanan et al. 2021, section 3), unless ``RankOrder`` says otherwise.
"""
FURTHER_AXES = ("cp",)
"""Axes of the built-in trainer between tp and dp; 1 where a configuration says nothing."""
GRID = ("gx", "gy", "gz")
"""Axes of the built-in trainer's three-dimensional tensor parallelism, innermost first.

They stand where a user's own axes do, and only where one of them has several ranks.
"""
PRICED_AXES = ("gy", "gz", *FURTHER_AXES)
"""Axes that a priced job has besides those of every job; the grid's gx counts as tp."""
SPLIT_WEIGHTS = ("tp", "gy", "gz")
"""Axes along which each rank has a part of every layer's matrices."""
SPLIT_TOKENS = ("gz", "cp")
"""Axes along which each rank has a part of a micro-batch's tokens."""
COPIES = ("cp", "dp")
"""Axes whose ranks hold the same weights; the last ones before pp."""
RANK_ORDERS: tuple[RankOrder, ...] = get_args(RankOrder)
"""Orders of the axes on ranks, innermost first.

The second keeps a pipeline's stages within a node and spreads replicas over nodes. Ranks of cp and
dp hold the same weights and are therefore neighbours in both; Megatron-LM's
``--use-tp-pp-dp-mapping`` differs from the second only in that it leaves cp beside tp.
"""


def ordered(own: Sequence[str] = ()) -> tuple[str, ...]:
    """All axes, innermost first; those that not every job has lie between tp and dp."""
    return (TENSOR, *own, REPLICAS, PIPELINE)


def is_pp_inside(rank_order: Any) -> Any:
    """Whether pp is numbered before cp and dp, in one order or in each of a column."""
    return rank_order == "tp-pp-cp-dp"


def beside_dp(own: Sequence[str] = ()) -> tuple[str, ...]:
    """Axes whose degree a configuration states; dp is what they leave of the ranks."""
    return tuple(name for name in ordered(own) if name != REPLICAS)


def ranks_of_replica(degrees: Mapping[str, Size], own: Sequence[str] = ()) -> Size:
    """Ranks that hold one replica: the product of all degrees but dp."""
    return math.prod(degrees[name] for name in beside_dp(own))


@dataclass(frozen=True)
class RankGroup:
    """Ranks of one collective; numbers or columns.

    Attributes:
        size: ranks.
        stride: from one member's global rank to the next one's: 1 for tp, tp for dp, tp * dp
            for pp, where that is outermost.
        world: ranks of the job, or None. A block of size * stride ranks that does not divide a
            node straddles two of them somewhere, unless the job is in one node.
    """

    size: Size
    stride: Size
    world: Size | None = None

    def of(self, rank: int) -> range:
        """The members of the group that a rank is in."""
        size, stride = (int(np.asarray(one).item()) for one in (self.size, self.stride))
        first = rank - rank // stride % size * stride
        return range(first, first + size * stride, stride)


@dataclass(frozen=True)
class Axes:
    """Axes and their sizes, innermost first: ranks 0 and 1 are neighbours on the first axis.

    Attributes:
        sizes: by axis; rank numbers run through the first one fastest.
        pp_inside: pp, the last axis, is numbered before cp and dp: ``tp-pp-cp-dp``. One value for
            all jobs, or a numpy column.
    """

    sizes: Mapping[str, Size]
    pp_inside: Size = False

    @property
    def of_states(self) -> Axes:
        """The same mesh with all ranks that hold the same weights as one axis ``dp``.

        Context-parallel ranks see other tokens; they reduce gradients and split states together
        with the data-parallel ones, as in Megatron.
        """
        sizes = {name: size for name, size in self.sizes.items() if name not in COPIES[:-1]}
        sizes[REPLICAS] = self.replicas
        return Axes(sizes, self.pp_inside)

    @property
    def replicas(self) -> Size:
        """Ranks that hold the same weights."""
        return self.product(COPIES)

    def product(self, names: Sequence[str]) -> Size:
        """Ranks along some axes together."""
        first, *others = [self.sizes[name] for name in names if name in self.sizes] or [1]
        return math.prod(others, start=first)  # columns are not multiplied by 1

    @property
    def world_size(self) -> Size:
        """Ranks of the job."""
        return math.prod(self.sizes.values())

    def stride(self, name: str) -> Size:
        """Distance of neighbours on an axis in rank numbers: ranks of all axes inside it."""
        names = [*self.sizes]
        place = names.index(name)
        inner = math.prod(self.sizes[one] for one in names[:place])
        first = next((i for i, one in enumerate(names) if one in COPIES), len(names))
        # A power of a truth value: x where it holds, else 1.
        if name == "pp":
            outside = math.prod(self.sizes[one] for one in names[first:place])
            return inner // outside**self.pp_inside
        if place >= first:
            return inner * self.sizes.get("pp", 1) ** self.pp_inside
        return inner

    @property
    def outermost_first(self) -> tuple[str, ...]:
        """One job's axes in the order of nested loops over its ranks."""
        return tuple(sorted(self.sizes, key=self.stride, reverse=True))

    def place(self, rank: int, name: str) -> int:
        """A rank's position on an axis."""
        return int(rank // self.stride(name) % self.sizes[name])

    def groups(self, name: str, size: int | None = None, apart: int = 1) -> list[list[int]]:
        """All groups of ``size`` ranks along an axis; together they hold every rank once.

        Args:
            name: the axis.
            size: ranks of a group; default the whole axis.
            apart: distance of its members along the axis: blocks of ``size * apart`` ranks are
                each cut into ``apart`` groups.
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

    def group(self, name: str, size: Size | None = None, apart: Size = 1) -> RankGroup:
        """Groups of ``size`` ranks along an axis as size and stride; see ``groups``."""
        size = self.sizes[name] if size is None else size
        stride = apart * self.stride(name)
        if isinstance(size, np.ndarray):
            stride = np.broadcast_to(np.asarray(stride, np.float64), size.shape)
        return RankGroup(size, stride, self.world_size)

    def group_of(self, rank: int, name: str, size: int | None = None, apart: int = 1) -> range:
        """The ranks of this rank's own group among ``groups``."""
        return self.group(name, size, apart).of(rank)
