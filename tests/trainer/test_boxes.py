"""Boxes of the whole matrix that a flat range of one rank's part is made of."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.model.slices import Cut


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    ranks = draw(st.sampled_from([1, 2, 4]))
    dim = draw(st.sampled_from([None, 0, 1]))
    parts = draw(st.lists(st.integers(1, 3).map(lambda n: n * ranks), min_size=1, max_size=3))
    columns = draw(st.lists(st.integers(1, 5), min_size=int(dim == 1), max_size=1))
    rows = sum(parts) // ranks if dim == 0 else sum(parts)
    stacked = tuple(parts) if dim == 0 and len(parts) > 1 else None
    rank = draw(st.integers(0, ranks - 1))
    return Cut((rows, *columns), dim, stacked, rank, ranks)


@given(cut=cuts(), data=st.data())
def test_boxes_of_a_flat_range_hold_its_elements_in_order(cut: Cut, data: st.DataObject) -> None:
    whole = torch.arange(math.prod(cut.whole)).view(cut.whole)
    if cut.dim is None:
        part = whole
    else:
        parts = whole.split(cut.parts, cut.dim) if cut.parts else (whole,)
        part = torch.cat([p.chunk(cut.ranks, cut.dim)[cut.rank] for p in parts], cut.dim)
    assert part.shape == cut.shape
    start = data.draw(st.integers(0, part.numel() - 1))
    length = data.draw(st.integers(1, part.numel() - start))
    boxes = list(cut.boxes(start, length, data.draw(st.integers(1, 20))))
    found = []
    for box in boxes:
        assert box.begin == start + sum(t.numel() for t in found)
        view = whole
        for dim, (offset, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
            view = view.narrow(dim, offset, size)
        found.append(view.flatten())
    assert torch.equal(torch.cat(found), part.flatten()[start : start + length])


def test_a_flat_range_of_rows_that_lie_together_is_three_boxes_at_most() -> None:
    boxes = list(Cut((6, 4), 1, None, 1, 2).boxes(3, 18, limit=1000))
    assert [(box.offsets, box.sizes) for box in boxes] == [
        ((0, 7), (1, 1)),
        ((1, 4), (4, 4)),
        ((5, 4), (1, 1)),
    ]
