"""Slices of the whole matrix that a flat range of one rank's part is made of."""

from __future__ import annotations

import math

import torch
from hypothesis import given, strategies as st

from trainer.model.slices import TensorShard


@st.composite
def shards(draw: st.DrawFn) -> TensorShard:
    ranks = draw(st.sampled_from([1, 2, 4]))
    dim = draw(st.sampled_from([None, 0, 1]))
    parts = draw(st.lists(st.integers(1, 3).map(lambda n: n * ranks), min_size=1, max_size=3))
    columns = draw(st.lists(st.integers(1, 5), min_size=int(dim == 1), max_size=1))
    rows = sum(parts) // ranks if dim == 0 else sum(parts)
    stacked = tuple(parts) if dim == 0 and len(parts) > 1 else None
    rank = draw(st.integers(0, ranks - 1))
    return TensorShard((rows, *columns), dim, stacked, rank, ranks)


@given(shard=shards(), data=st.data())
def test_slices_of_a_flat_range_hold_its_elements_in_order(
    shard: TensorShard, data: st.DataObject
) -> None:
    whole = torch.arange(math.prod(shard.whole)).view(shard.whole)
    if shard.dim is None:
        part = whole
    else:
        parts = whole.split(shard.parts, shard.dim) if shard.parts else (whole,)
        part = torch.cat([p.chunk(shard.ranks, shard.dim)[shard.rank] for p in parts], shard.dim)
    assert part.shape == shard.shape
    start = data.draw(st.integers(0, part.numel() - 1))
    length = data.draw(st.integers(1, part.numel() - start))
    slices = list(shard.slices(start, length, data.draw(st.integers(1, 20))))
    found = []
    for one in slices:
        assert one.begin == start + sum(t.numel() for t in found)
        view = whole
        for dim, (offset, size) in enumerate(zip(one.offsets, one.sizes, strict=True)):
            view = view.narrow(dim, offset, size)
        found.append(view.flatten())
    assert torch.equal(torch.cat(found), part.flatten()[start : start + length])


def test_a_flat_range_of_rows_that_lie_together_is_three_slices_at_most() -> None:
    slices = list(TensorShard((6, 4), 1, None, 1, 2).slices(3, 18, limit=1000))
    assert [(one.offsets, one.sizes) for one in slices] == [
        ((0, 7), (1, 1)),
        ((1, 4), (4, 4)),
        ((5, 4), (1, 1)),
    ]
