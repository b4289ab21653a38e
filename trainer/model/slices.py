"""Positions of a flat part of a rank's parameter in the whole parameter. Torch-free.

Data parallelism splits parameters regardless of rows; tensor parallelism splits rows or columns, of
each stacked matrix by itself; a grid splits both. Initial weights and checkpoints refer to slices
of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer.plan.shards import Shape, segments


class Slice(NamedTuple):
    """A slice of the whole parameter whose elements are consecutive in the rank's shard, flat."""

    begin: int  # first element in the rank's flattened shard
    offsets: Shape
    sizes: Shape


class Cut(NamedTuple):
    """One of ``ranks`` equal shares."""

    rank: int = 0
    ranks: int = 1


class Split(NamedTuple):
    """A parameter's split over the ranks of one replica; by default each holds the whole."""

    axes: tuple[str, ...] = ()  # parallel axes along which each rank holds a share of its own
    rows: Cut = Cut()  # cut of the rows of each stacked matrix, or of a vector
    columns: Cut = Cut()
    again: Cut = Cut()  # second cut of the rows, after ``rows``


WHOLE = Split()


@dataclass(frozen=True)
class TensorShard:
    """A rank's shard, of shape ``shape``, of a whole vector or matrix."""

    shape: Shape
    split: Split = WHOLE
    parts: tuple[int, ...] | None = None
    """Rows of each of the stacked matrices in the whole; None if there is one."""

    @property
    def whole(self) -> Shape:
        rows, columns = self.shape[0], self.shape[1:]
        by = self.split
        wide = tuple(size * by.columns.ranks for size in columns)
        return (rows * by.rows.ranks * by.again.ranks, *wide)

    def row_ranges(self) -> Iterator[tuple[int, int]]:
        """Rows of the whole that the shard holds, in its own order."""
        by, rows = self.split, self.shape[0]
        parts = self.parts if self.parts and by.rows.ranks > 1 else self.whole[:1]
        shares = [part // by.rows.ranks for part in parts]  # of each matrix, that ``rows`` leaves
        for number, begin, _, length in segments(shares, by.again.rank * rows, rows):
            first = sum(parts[:number]) + by.rows.rank * shares[number] + begin
            yield first, first + length

    def slices(self, start: int, length: int, limit: int) -> Iterator[Slice]:
        """Cover elements ``[start, start + length)`` of the flattened shard.

        Up to three slices per range of rows: the rest of a row, whole rows, the beginning of a row.
        A slice of several rows has at most ``limit`` elements.
        """
        columns = math.prod(self.shape[1:])
        first_column = self.split.columns.rank * columns if len(self.shape) > 1 else 0
        end = start + length
        row = 0  # of the shard, where the range of rows begins
        for low, high in self.row_ranges():
            stop = min(end, (row + high - low) * columns)
            while start < stop:
                there, column = divmod(start, columns)
                if column or stop - start < columns:
                    rows, width = 1, min(stop - start, columns - column)
                else:
                    rows, width = min((stop - start) // columns, max(1, limit // columns)), columns
                offsets = (low + there - row, first_column + column)
                dims = len(self.shape)
                yield Slice(start, offsets[:dims], (rows, width)[:dims])
                start += rows * width
            row += high - low


def shard_of(module: Any, name: str) -> TensorShard:
    """This rank's shard of a module's parameter; its ``splits`` and ``parts`` say which."""
    split = getattr(module, "splits", {}).get(name, WHOLE)
    return TensorShard(tuple(getattr(module, name).shape), split, getattr(module, "parts", None))
