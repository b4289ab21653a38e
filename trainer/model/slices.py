"""Where a flat part of a tensor-parallel rank's parameter lies in the whole parameter.

Data parallelism splits parameters without regard to their rows; tensor parallelism splits rows or
columns, of several stacked matrices each by itself. Checkpoints speak of slices of the whole.
Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

Shape = tuple[int, ...]


class Slice(NamedTuple):
    """A slice of the whole parameter whose elements are consecutive in the rank's shard, flat."""

    begin: int
    """Where they begin in the rank's shard."""
    offsets: Shape
    sizes: Shape


@dataclass(frozen=True)
class TensorShard:
    """A rank's shard of a whole vector or matrix.

    Attributes:
        shape: of the shard.
        dim: along which the whole is split; None if the rank holds the whole.
        parts: rows of each of the stacked matrices in the whole; None if there is one.
        rank: which shard it is.
        ranks: number of shards.
    """

    shape: Shape
    dim: int | None = None
    parts: tuple[int, ...] | None = None
    rank: int = 0
    ranks: int = 1

    @property
    def whole(self) -> Shape:
        """Shape of the whole."""
        return tuple(
            size * self.ranks if dim == self.dim else size for dim, size in enumerate(self.shape)
        )

    def row_ranges(self) -> Iterator[tuple[int, int]]:
        """Rows of the whole that the shard holds, in its own order."""
        if self.dim == 0:
            yield from rows_held(self.parts or self.whole[:1], self.rank, self.ranks)
        else:
            yield 0, self.shape[0]

    def slices(self, start: int, length: int, limit: int) -> Iterator[Slice]:
        """Cover elements ``[start, start + length)`` of the shard, flat.

        Up to three slices where rows are consecutive in the whole: the rest of a row, whole rows,
        the beginning of a row.

        Args:
            start: first element.
            length: number of elements.
            limit: elements of a slice of several rows.
        """
        columns = math.prod(self.shape[1:])
        first_column = self.rank * columns if self.dim == 1 else 0
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


def rows_held(parts: tuple[int, ...], rank: int, ranks: int) -> Iterator[tuple[int, int]]:
    """Rows of the whole matrix that a rank holds: its share of each stacked part."""
    start = 0
    for part in parts:
        share = part // ranks
        yield start + rank * share, start + (rank + 1) * share
        start += part
