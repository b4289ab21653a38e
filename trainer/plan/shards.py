"""How the parameters of one sharded unit lie in memory, and what its collectives will send.

FSDP2 splits every parameter along its first dimension, filled up to whole chunks; a rank's chunks
of a unit (one layer, say) make a row. Gradients and optimizer states are cuts of that row, so that
a finer split nests in a coarser one. Torch-free: the trainer executes these sizes, and whoever
wants to know the bytes beforehand reads them here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from trainer.plan import ring
from trainer.plan.formats import BLOCK, Format
from trainer.plan.placement import Level, Placement
from trainer.plan.shapes import Shape, Traits

ROW = 1024
"""Buckets are padded to whole rows: a norm is then exact, a row at a time."""


class Segment(NamedTuple):
    """The part of one parameter that lies in a cut of a row."""

    parameter: int
    """Its number in the unit."""
    begin: int
    """Where the part begins in the parameter's chunk, in elements."""
    offset: int
    """Where it begins in the cut."""
    length: int


class Sent(NamedTuple):
    """What one rank sends in one collective."""

    purpose: str
    level: Level
    num_bytes: int


@dataclass(frozen=True)
class UnitLayout:
    """Consecutive cuts of a unit's row: every split state in one coordinate system.

    Attributes:
        placement: of the states.
        shapes: of the unit's parameters on this rank, after tensor parallelism.
        node_replicas: consecutive data-parallel ranks that share a node.
    """

    placement: Placement
    shapes: tuple[Shape, ...]
    node_replicas: int = 1

    @property
    def ranks(self) -> int:
        """Rows of the unit: ranks that its stored weights are split over."""
        return self.placement.storage_degree

    @property
    def pieces(self) -> int:
        """Cuts of a row between ranks that accumulate gradients."""
        return self.placement.gradients.degree // self.ranks

    @property
    def slices(self) -> int:
        """Cuts of such a piece between ranks that update weights."""
        return self.placement.optimizer.degree // self.placement.gradients.degree

    @property
    def copies(self) -> int:
        """Ranks that update the same slice."""
        return self.placement.dp // self.placement.optimizer.degree

    @property
    def hops(self) -> tuple[int, ...]:
        """Sizes of the all-to-alls that reduce quantized gradients: in the node, then across."""
        degree = self.placement.gradients.degree
        local = math.gcd(self.node_replicas, degree)
        return tuple(size for size in (local, degree // local) if size > 1)

    @property
    def chunks(self) -> tuple[int, ...]:
        """Elements of each parameter's chunk in a row."""
        return tuple(-(-shape[0] // self.ranks) * math.prod(shape[1:]) for shape in self.shapes)

    @property
    def used(self) -> int:
        """Elements of a row that belong to parameters (or to the filling of their chunks)."""
        return sum(self.chunks)

    @property
    def row(self) -> int:
        """Elements of a row, filled up so that all cuts are equal.

        Where updated weights are published as INT8, cuts are whole blocks of it: gathering then
        quantizes the row in the same blocks again, which adds no error.
        """
        cuts = self.pieces * self.slices
        if cuts > 1 and self.placement.gather_format.quantized:
            cuts *= BLOCK
        return -(-self.used // cuts) * cuts

    @property
    def piece(self) -> int:
        return self.row // self.pieces

    @property
    def slice(self) -> int:
        return self.piece // self.slices

    @property
    def secondary(self) -> tuple[int, int]:
        """Rows of a rank's share of the secondary copy, and elements of each.

        Whole rows of the primary where the copy is split less: what was quantized in a row is then
        quantized again in the very same blocks. Else an even part of all rows end to end.
        """
        assert self.placement.secondary is not None
        degree = self.placement.secondary.degree
        if self.ranks % degree == 0:
            return self.ranks // degree, self.used
        return 1, -(-self.ranks * self.used // degree)

    def segments(self, begin: int, length: int) -> Iterator[Segment]:
        """Parameters' parts in ``row[begin : begin + length]``."""
        start = 0
        for number, chunk in enumerate(self.chunks):
            low, high = max(begin, start), min(begin + length, start + chunk)
            if low < high:
                yield Segment(number, low - start, low - begin, high - low)
            start += chunk

    def begin(self, replica: int) -> int:
        """Where the slice of the row begins that a data-parallel rank updates."""
        placement = self.placement
        piece = replica % placement.gradients.degree // self.ranks
        cut = replica % placement.optimizer.degree // placement.gradients.degree
        return piece * self.piece + cut * self.slice

    def updated(self, replica: int) -> Iterator[Segment]:
        """Parameters' parts in that slice; the filling of chunks is no part of them."""
        row = replica % self.ranks
        for number, begin, offset, length in self.segments(self.begin(replica), self.slice):
            shape, chunk = self.shapes[number], self.chunks[number]
            real = min(chunk, math.prod(shape) - row * chunk)
            if begin < real:
                yield Segment(number, begin, offset, min(length, real - begin))

    def gather_bytes(self) -> int:
        """Sent in one gathering of whole weights from the stored ones."""
        return (self.ranks - 1) * self.placement.gather_format.num_bytes(self.used)

    def secondary_bytes(self) -> int:
        """Sent in one gathering from the secondary copy."""
        copy = self.placement.secondary
        assert copy is not None
        rows, length = self.secondary
        return (copy.degree - 1) * rows * secondary_wire(self.placement).num_bytes(length)

    def reduce_bytes(self) -> list[int]:
        """Sent in the reduction of one micro-batch's gradients, hop by hop.

        INT4: all-to-all in the node, then across nodes what the node has summed (Wang et al.
        2023, section 4.3). Otherwise one reduce-scatter.
        """
        wire = self.placement.reduce_format
        degree = self.placement.gradients.degree
        if not wire.quantized:
            return [(degree - 1) * wire.num_bytes(self.piece)]
        sent, rest = [], degree
        for hop in self.hops:
            rest //= hop
            sent.append((hop - 1) * wire.num_bytes(rest * self.piece))
        return sent

    def sync_bytes(self) -> int:
        """Sent to scatter the step's gradients over the groups that have accumulated them."""
        return (self.slices - 1) * self.placement.reduce_format.num_bytes(self.slice)

    def publish_bytes(self) -> list[int]:
        """Sent to bring updated weights to the stored ones: over ``slices``, over ``pieces``."""
        wire = self.placement.gather_format
        one = wire.num_bytes(self.slice)
        return [(self.slices - 1) * one, (self.pieces - 1) * self.slices * one]

    def copies_bytes(self) -> int:
        """Sent to sum the step's gradients over ranks that update the same slice."""
        return ring.all_reduce_bytes(sum_format(self.placement).num_bytes(self.slice), self.copies)


def secondary_wire(placement: Placement) -> Format:
    """Format in which the secondary copy is gathered."""
    copy = placement.secondary
    assert copy is not None
    return copy.format if copy.format.quantized else placement.gather_format


def sum_format(placement: Placement) -> Format:
    """Format of gradients in an all-reduce, which cannot be quantized."""
    wire = placement.reduce_format
    return Format.FP32 if wire.quantized else wire


class _Sized(Protocol):
    @property
    def traits(self) -> Traits: ...
    @property
    def numel(self) -> int: ...


_Member = TypeVar("_Member", bound=_Sized)


def fill(members: Iterable[_Member], limit: int) -> list[list[_Member]]:
    """Group whole parameters into buckets of equal traits, at most ``limit`` elements unless alone.

    Given in the order in which gradients arrive, so that full buckets leave early.
    """
    done: list[list[_Member]] = []
    filling: dict[Traits, tuple[list[_Member], int]] = {}
    for member in members:
        bucket, held = filling.get(member.traits, ([], 0))
        if bucket and held + member.numel > limit:
            done.append(bucket)
            bucket, held = [], 0
        filling[member.traits] = ([*bucket, member], held + member.numel)
    return done + [bucket for bucket, _ in filling.values()]


def padded(bucket: Sequence[_Sized], shares: int) -> int:
    """Elements of a bucket that is split over so many ranks."""
    used = sum(member.numel for member in bucket)
    return -(-used // (shares * ROW)) * shares * ROW


def gathers_per_step(
    micro_batches: Any, has_copy: Any, passes: int = 2, refresh_each: bool = False
) -> tuple[Any, Any]:
    """Gatherings of split weights in a step: from the stored ones, and from the secondary copy.

    Args:
        micro_batches: per step; a number, or a column of them.
        has_copy: whether there is a secondary copy, which the stored weights are gathered to renew.
        passes: before each of which weights are gathered: forward and backward.
        refresh_each: the copy is renewed in every micro-batch, not once a step.
    """
    every = passes * micro_batches
    stored = np.where(has_copy, micro_batches if refresh_each else 1, every)
    return stored, every - stored


def unit_traffic(
    unit: UnitLayout,
    gathers: int,
    secondary_gathers: int,
    reductions: int,
    level: Callable[[int, int], Level],
) -> list[Sent]:
    """All that one rank sends in a step for one unit, collective by collective.

    Args:
        unit: how it lies.
        gathers: of whole weights from the stored ones, per step.
        secondary_gathers: from the secondary copy, per step.
        reductions: of gradients, per step.
        level: of this rank's group of so many data-parallel ranks, so far apart.
    """
    sent: list[Sent] = []

    def add(purpose: str, size: int, stride: int, num_bytes: int, times: int = 1) -> None:
        if size > 1:
            sent.extend([Sent(purpose, level(size, stride), num_bytes)] * times)

    placement = unit.placement
    degree = placement.gradients.degree
    add("weights", unit.ranks, 1, unit.gather_bytes(), gathers)
    if placement.secondary is not None:
        size = placement.secondary.degree
        add("secondary", size, 1, unit.secondary_bytes(), secondary_gathers)
    hops = unit.hops if placement.reduce_format.quantized else (degree,)
    stride = 1
    for size, num_bytes in zip(hops, unit.reduce_bytes(), strict=True):
        add("gradients", size, stride, num_bytes, reductions)
        stride *= size
    add("gradient_sync", unit.slices, degree, unit.sync_bytes())
    add("gradient_sync", unit.copies, placement.optimizer.degree, unit.copies_bytes())
    across, within = unit.publish_bytes()
    add("publish", unit.slices, degree, across)
    add("publish", unit.pieces, unit.ranks, within)
    return sent
