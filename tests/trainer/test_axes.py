"""Parallel axes: groups tile the ranks, and a rank finds its own among them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trainer.axes import SPLITS, Axes, beside_dp, ordered, ranks_of_replica

FOUR = Axes({"tp": 2, "cp": 3, "dp": 4, "pp": 2})


@pytest.mark.parametrize("name", FOUR.sizes)
def test_the_groups_of_an_axis_hold_every_rank_once(name: str) -> None:
    groups = FOUR.groups(name)
    assert sorted(itertools.chain(*groups)) == list(range(FOUR.world_size))
    for ranks in groups:
        assert [FOUR.place(rank, name) for rank in ranks] == list(range(FOUR.sizes[name]))
        others = {tuple(FOUR.place(r, o) for o in FOUR.sizes if o != name) for r in ranks}
        assert len(others) == 1, "members differ in this axis only"


@pytest.mark.parametrize(("size", "apart"), [(4, 1), (2, 1), (2, 2), (1, 1)])
def test_a_rank_finds_its_own_group(size: int, apart: int) -> None:
    groups = FOUR.groups("dp", size, apart)
    for rank in range(FOUR.world_size):
        own = [ranks for ranks in groups if rank in ranks]
        assert own == [list(FOUR.group_of(rank, "dp", size, apart))]


def test_strides_are_the_ranks_of_the_axes_inside() -> None:
    assert [FOUR.stride(name) for name in FOUR.sizes] == [1, 2, 6, 24]
    assert FOUR.world_size == 48


def test_sizes_may_be_columns() -> None:
    axes = Axes({"tp": np.array([1, 2]), "dp": np.array([8, 2]), "pp": np.array([1, 4])})
    assert axes.world_size.tolist() == [8, 16]
    assert axes.stride("pp").tolist() == [8, 4]


def test_an_axis_of_ones_own_lies_between_tp_and_dp_and_counts_in_a_replica() -> None:
    assert ordered() == tuple(SPLITS) == ("tp", "dp", "pp")
    assert ordered(["cp", "ep"]) == ("tp", "cp", "ep", "dp", "pp")
    assert beside_dp(["cp"]) == ("tp", "cp", "pp")
    assert ranks_of_replica({"tp": 2, "cp": 3, "pp": 4, "dp": 100}, ["cp"]) == 24
