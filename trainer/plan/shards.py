"""Memory layout of an FSDP2 unit's parameters, and the collectives that follow from it. Torch-free.

FSDP2 shards every parameter along its first dimension, padded to whole chunks; a rank's chunks of a
unit (one layer, say) form its row. Gradients and optimizer states are cuts of that row, so that a
finer sharding nests in a coarser one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from trainer.plan.formats import BLOCK, Format
from trainer.plan.placement import Placement

Shape = tuple[int, ...]
ROW = 1024  # buckets are padded to a multiple of this, so that their norm can be taken row by row


class Traits(NamedTuple):
    """Properties that decide how a parameter is sharded, updated and reduced."""

    split: tuple[str, ...]
    """Parallel axes along which ranks hold different parts; along all others they hold the same."""
    decays: bool  # weight decay applies: matrices, not norms and biases
    shared: bool  # the tied embedding, on the first and the last pipeline stage
    copy: bool  # the last stage's copy of it, left out of the global norm


class Segment(NamedTuple):
    """Part of one piece that lies in a cut of all pieces; offsets and length in elements."""

    piece: int  # its number
    begin: int  # offset in the piece
    offset: int  # offset in the cut
    length: int


def segments(sizes: Iterable[int], begin: int, length: int) -> Iterator[Segment]:
    """Parts of pieces of these ``sizes``, laid end to end, in ``[begin, begin + length)``."""
    start = 0
    for number, size in enumerate(sizes):
        low, high = max(begin, start), min(begin + length, start + size)
        if low < high:
            yield Segment(number, low - start, low - begin, high - low)
        start += size


@dataclass(frozen=True)
class UnitLayout:
    """Cuts of a unit's row for weights, gradients and optimizer states."""

    placement: Placement  # shard degrees and formats
    shapes: tuple[Shape, ...]  # parameters on this rank, after tensor parallelism
    node_replicas: int = 1  # consecutive data-parallel ranks on one node

    @property
    def ranks(self) -> int:
        """Ranks that the stored weights are sharded over: rows of the unit."""
        return self.placement.storage_degree

    @property
    def pieces(self) -> int:
        """Gradient shards per row."""
        return self.placement.gradient_shard // self.ranks

    @property
    def slices(self) -> int:
        """Optimizer shards per gradient shard."""
        return self.placement.optimizer_shard // self.placement.gradient_shard

    @property
    def copies(self) -> int:
        """Ranks that update the same slice."""
        return self.placement.dp // self.placement.optimizer_shard

    @property
    def hops(self) -> tuple[int, ...]:
        """Sizes of the all-to-alls that reduce quantized gradients: within a node, then across
        nodes."""
        degree = self.placement.gradient_shard
        local = math.gcd(self.node_replicas, degree)
        return tuple(size for size in (local, degree // local) if size > 1)

    @functools.cached_property  # asked for in every backward pass
    def chunks(self) -> tuple[int, ...]:
        """Elements of each parameter's chunk in a row."""
        return tuple(-(-shape[0] // self.ranks) * math.prod(shape[1:]) for shape in self.shapes)

    @functools.cached_property
    def used(self) -> int:
        """Elements of a row before its own padding; padding of chunks counts."""
        return sum(self.chunks)

    @property
    def row(self) -> int:
        """Elements of a row, padded so that all cuts are equal.

        Where updated weights are gathered as INT8, cuts are whole quantization blocks:
        re-quantizing a row then uses the same blocks and adds no error.
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
        """Rows of a rank's shard of the secondary copy, and elements of each.

        Whole rows of the primary if the copy's degree divides it, which keeps quantization blocks
        aligned; else an even part of all rows end to end.
        """
        degree = self.placement.secondary_shard
        if self.ranks % degree == 0:
            return self.ranks // degree, self.used
        return 1, -(-self.ranks * self.used // degree)

    def begin(self, replica: int) -> int:
        """Start of a data-parallel rank's optimizer shard in the row."""
        placement = self.placement
        piece = replica % placement.gradient_shard // self.ranks
        cut = replica % placement.optimizer_shard // placement.gradient_shard
        return piece * self.piece + cut * self.slice

    def updated(self, replica: int) -> Iterator[Segment]:
        """Parts of parameters in a data-parallel rank's optimizer shard, without padding."""
        row = replica % self.ranks
        for number, begin, offset, length in segments(self.chunks, self.begin(replica), self.slice):
            shape, chunk = self.shapes[number], self.chunks[number]
            real = min(chunk, math.prod(shape) - row * chunk)
            if begin < real:
                yield Segment(number, begin, offset, min(length, real - begin))


def secondary_wire(placement: Placement) -> Format:
    """Format in which the secondary copy is gathered."""
    copy = placement.secondary_format
    return copy if copy.quantized else placement.gather_format


def sum_format(placement: Placement) -> Format:
    """Format of gradients in an all-reduce or from a flat bucket, which is never quantized."""
    wire = placement.reduce_format
    return Format.FP32 if wire.quantized else wire


class _Sized(Protocol):
    @property
    def traits(self) -> Traits: ...
    @property
    def numel(self) -> int: ...


_Member = TypeVar("_Member", bound=_Sized)


def fill(members: Iterable[_Member], limit: int) -> list[list[_Member]]:
    """Group parameters of equal traits into buckets of at most ``limit`` elements; a larger one is
    alone.

    Members come in the order of their gradients, so that full buckets can be reduced early.
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
    """Elements of a bucket padded for ``shares`` ranks."""
    used = sum(member.numel for member in bucket)
    return -(-used // (shares * ROW)) * shares * ROW
