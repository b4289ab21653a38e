"""Slices of the whole matrix that a flat range of one rank's part is made of."""

from __future__ import annotations

import math

import torch
from hypothesis import given, strategies as st

from trainer.model.slices import Cut, Split, TensorShard


@st.composite
def shards(draw: st.DrawFn) -> TensorShard:
    def cut() -> Cut:
        ranks = draw(st.sampled_from([1, 2, 4]))
        return Cut(draw(st.integers(0, ranks - 1)), ranks)

    rows, wide, again = cut(), cut(), cut()
    multiple = rows.ranks * again.ranks
    parts = draw(st.lists(st.integers(1, 3).map(lambda n: n * multiple), min_size=1, max_size=3))
    columns = draw(st.lists(st.integers(1, 5), min_size=int(wide.ranks > 1), max_size=1))
    stacked = tuple(parts) if len(parts) > 1 else None
    return TensorShard((sum(parts) // multiple, *columns), Split((), rows, wide, again), stacked)


@given(shard=shards(), data=st.data())
def test_slices_of_a_flat_range_hold_its_elements_in_order(
    shard: TensorShard, data: st.DataObject
) -> None:
    whole = torch.arange(math.prod(shard.whole)).view(shard.whole)
    rows, wide, again = shard.split[1:]
    parts = whole.split(shard.parts) if shard.parts else (whole,)
    part = torch.cat([p.chunk(rows.ranks)[rows.rank] for p in parts])
    part = part.chunk(wide.ranks, -1)[wide.rank] if wide.ranks > 1 else part
    part = part.chunk(again.ranks)[again.rank]
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
    slices = list(TensorShard((6, 4), Split(columns=Cut(1, 2))).slices(3, 18, limit=1000))
    assert [(one.offsets, one.sizes) for one in slices] == [
        ((0, 7), (1, 1)),
        ((1, 4), (4, 4)),
        ((5, 4), (1, 1)),
    ]
