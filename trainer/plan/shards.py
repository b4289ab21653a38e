"""Layout of a sharded unit's parameters in memory, and the exchanges that follow from it.

FSDP2 splits every parameter along its first dimension, filled up to whole chunks; a rank's chunks
of a unit (one layer, say) make a row. Gradients and optimizer states are cuts of that row, so that
a finer split nests in a coarser one. Torch-free: the trainer executes these sizes, and whoever
wants to know the bytes beforehand reads them here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

from trainer.plan.axes.dp import Cuts, Holders, Wires, state_exchanges
from trainer.plan.exchange import Exchange
from trainer.plan.formats import BLOCK, Format
from trainer.plan.placement import Placement
from trainer.plan.shapes import Shape, Traits
from trainer.plan.states import Degrees

ROW = 1024
"""Buckets are padded to whole rows: a norm is then exact, a row at a time."""


class Segment(NamedTuple):
    """The part of one parameter that lies in a cut of a row."""

    parameter: int
    """Its number in the unit."""
    begin: int
    """Begin of the part in the parameter's chunk, in elements."""
    offset: int
    """Begin of it in the cut."""
    length: int


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
        """Begin of the slice of the row that a data-parallel rank updates."""
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


def unit_exchanges(
    unit: UnitLayout, holders: Holders, gathers: tuple[int, int], reductions: int
) -> Iterator[Exchange]:
    """All that one rank sends in a step for one unit, in whole numbers.

    Quantized gradients are reduced by an all-to-all in the node, then across nodes what the node
    has summed (Wang et al. 2023, section 4.3). Updated weights are published first between the
    slices of a piece, then between pieces.

    Args:
        unit: how it lies.
        holders: its ranks.
        gathers: of whole weights per step, from the stored ones and from the secondary copy.
        reductions: of gradients per step.
    """
    placement = unit.placement
    rows, copied = unit.secondary if placement.secondary is not None else (0, 0)
    copy = secondary_wire(placement) if placement.secondary is not None else Format.FP32
    gather, reduce = placement.gather_format.num_bytes, placement.reduce_format.num_bytes
    degree = placement.gradients.degree
    whole = state_exchanges(
        holders,
        # Gathers start from the stored weights, which may be split where those in use are not.
        Degrees(unit.ranks, placement.secondary_shard, degree, placement.optimizer_shard),
        Cuts(unit.used, copied, unit.piece, unit.slice),
        Wires(gather, lambda n: rows * copy.num_bytes(n), reduce, sum_format(placement).num_bytes),
        gathers,
        reductions,
    )
    yield whole.weights
    yield whole.secondary
    stride, rest = 1, degree
    for hop in unit.hops if placement.reduce_format.quantized else (degree,):
        rest //= hop
        num_bytes = hop * reduce(rest * unit.piece)
        yield replace(whole.gradients, group=holders.group(hop, stride), num_bytes=num_bytes)
        stride *= hop
    yield whole.gradient_scatter
    yield whole.gradient_sum
    one = gather(unit.slice)
    across, within = holders.group(unit.slices, degree), holders.group(unit.pieces, unit.ranks)
    yield replace(whole.publish, group=across, num_bytes=unit.slices * one)
    yield replace(whole.publish, group=within, num_bytes=unit.pieces * unit.slices * one)


def bucket_exchanges(
    placement: Placement, total: int, holders: Holders, reductions: int
) -> Iterator[Exchange]:
    """All that one rank sends in a step for a flat bucket of whole weights; see ``padded``.

    Gradients go straight to the ranks that update them. Without a split there is one sum of them.
    """
    shares = placement.optimizer_shard
    share, stored = total // shares, placement.weights.format
    wire = placement.reduce_format.num_bytes
    whole = state_exchanges(
        holders,
        Degrees(1, 0, shares, shares),
        Cuts(total, 0, share, share),
        Wires(stored.num_bytes, stored.num_bytes, wire, wire),
        (0, 0),
        reductions,
    )
    yield whole.gradients
    yield whole.publish
    purpose = "gradients" if shares == 1 else "gradient_sync"
    yield replace(whole.gradient_sum, purpose=purpose)
