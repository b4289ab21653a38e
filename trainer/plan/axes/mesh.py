"""The mesh of ranks: order and sizes of the parallel axes, strides and groups. Torch-free.

The trainer, spaces and the cost model read the same record; sizes are numbers or columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Size = Any  # int, or a numpy column

FURTHER_AXES = ("cp",)
"""Axes of the built-in trainer between tp and dp; default 1."""
GRID = ("gx", "gy", "gz")
"""Axes of the built-in trainer's grid, innermost first; present only where one exceeds 1."""
PRICED_AXES = ("gy", "gz", *FURTHER_AXES)
"""Further axes of a priced job; the grid's gx counts as tp."""
SPLIT_WEIGHTS = ("tp", "gy", "gz")
"""Axes that split every layer's matrices."""
SPLIT_TOKENS = ("gz", "cp")
"""Axes that split a micro-batch's tokens."""
COPIES = ("cp", "dp")
"""Axes of ranks with the same weights; the last ones before pp."""


def ordered(own: Sequence[str] = ()) -> tuple[str, ...]:
    """All axes, innermost first; ``own`` ones lie between tp and dp.

    Tensor-parallel ranks are neighbours, so that they share a node; pipeline stages are farthest
    apart, since they talk least (Narayanan et al. 2021, section 3), unless ``RankOrder`` says
    otherwise.
    """
    return ("tp", *own, "dp", "pp")


def is_pp_inside(rank_order: Any) -> Any:
    """Whether ranks run through pp before cp and dp; takes a ``RankOrder``, or a column of them.

    This keeps a pipeline's stages within a node and spreads replicas over nodes, like Megatron-LM's
    ``--use-tp-pp-dp-mapping``, except that cp stays beside dp, with the same weights.
    """
    return rank_order == "tp-pp-cp-dp"


def beside_dp(own: Sequence[str] = ()) -> tuple[str, ...]:
    """Axes with a stated degree; dp follows from the world size."""
    return tuple(name for name in ordered(own) if name != "dp")


def ranks_of_replica(degrees: Mapping[str, Size], own: Sequence[str] = ()) -> Size:
    """Ranks per replica: the product of all degrees but dp."""
    return math.prod(degrees[name] for name in beside_dp(own))


@dataclass(frozen=True)
class RankGroup:
    """Ranks of one collective; numbers or columns."""

    size: Size
    # distance of neighbours in rank numbers: 1 for tp, tp for dp, tp * dp for an outermost pp
    stride: Size
    # ranks of the job, or None. A block of size * stride ranks that does not divide a node
    # straddles two of them somewhere, unless the job is on one node
    world: Size | None = None

    def of(self, rank: int) -> range:
        """Members of a rank's own group."""
        size, stride = (int(np.asarray(one).item()) for one in (self.size, self.stride))
        first = rank - rank // stride % size * stride
        return range(first, first + size * stride, stride)


@dataclass(frozen=True)
class Axes:
    """Axes and their sizes, innermost first."""

    sizes: Mapping[str, Size]  # by axis; rank numbers run through the first one fastest
    # pp, the last axis, is numbered before cp and dp (``tp-pp-cp-dp``); one value or a column
    pp_inside: Size = False

    @property
    def of_states(self) -> Axes:
        """The mesh with dp and cp merged into ``dp``: ranks that share gradients and sharded
        states."""
        sizes = {name: size for name, size in self.sizes.items() if name not in COPIES[:-1]}
        sizes["dp"] = self.replicas
        return Axes(sizes, self.pp_inside)

    @property
    def replicas(self) -> Size:
        """Ranks that hold the same weights."""
        return self.product(COPIES)

    def product(self, names: Sequence[str]) -> Size:
        first, *others = [self.sizes[name] for name in names if name in self.sizes] or [1]
        return math.prod(others, start=first)  # columns are not multiplied by 1

    @property
    def world_size(self) -> Size:
        return math.prod(self.sizes.values())

    def stride(self, name: str) -> Size:
        """Distance of neighbours on an axis in rank numbers."""
        pp_last = [*self.sizes]
        pp_inside = sorted(pp_last, key=COPIES.__contains__)
        last, inside = (
            math.prod(self.sizes[one] for one in order[: order.index(name)])
            for order in (pp_last, pp_inside)
        )
        if isinstance(self.pp_inside, np.ndarray):
            return np.where(self.pp_inside, inside, last)
        return inside if self.pp_inside else last

    def place(self, rank: int, name: str) -> int:
        return int(rank // self.stride(name) % self.sizes[name])

    def groups(self, name: str, size: int | None = None, apart: int = 1) -> list[list[int]]:
        """All groups of ``size`` ranks along an axis (default the whole), each member ``apart``
        positions from the next; every rank is in one group."""
        own = map(self.group(name, size, apart).of, range(self.world_size))
        return [[*ranks] for rank, ranks in enumerate(own) if ranks[0] == rank]

    def group(self, name: str, size: Size | None = None, apart: Size = 1) -> RankGroup:
        """Size and stride of ``groups``."""
        size = self.sizes[name] if size is None else size
        stride = apart * self.stride(name)
        if isinstance(size, np.ndarray):
            stride = np.broadcast_to(np.asarray(stride, np.float64), size.shape)
        return RankGroup(size, stride, self.world_size)
