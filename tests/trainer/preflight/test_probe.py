"""Which groups of ranks are measured."""

from __future__ import annotations

import itertools

import pytest

from trainer.preflight.probe import GroupShape, group_shapes


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 4), (4, 8), (3, 6), (2, 1)])
def test_the_groups_of_every_layout_are_measured(nodes: int, per_node: int) -> None:
    """Of the layouts that fill one node, or so many nodes as are measured."""
    shapes = {(s.gpus, s.stride) for s in group_shapes(nodes, per_node)}
    for tp, dp, pp in itertools.product(range(1, nodes * per_node + 1), repeat=3):
        if per_node % tp == 0 and tp * dp * pp in (per_node, nodes * per_node):
            whole = [g for g in ((tp, 1), (dp, tp), (pp, tp * dp)) if g[0] > 1]
            inside = [g for g in whole if per_node % (g[0] * g[1]) == 0]
            across = [g for g in whole if g[0] * g[1] == nodes * per_node and per_node % g[1] == 0]
            assert shapes.issuperset([*inside, *across]), (tp, dp, pp)


@pytest.mark.parametrize(
    "shape", [GroupShape(2, 1, 1), GroupShape(2, 1, 4), GroupShape(4, 2, 4), GroupShape(4, 4, 8)]
)
def test_groups_of_a_shape_share_out_the_ranks(shape: GroupShape) -> None:
    groups = [tuple(shape.members(rank, 32)) for rank in range(32)]
    assert all(rank in group for rank, group in enumerate(groups))
    assert len(set(groups)) == 32 // shape.gpus
    assert all(len({r // 8 for r in group}) == shape.nodes for group in groups)


def test_ranks_of_a_block_that_is_not_full_only_wait() -> None:
    assert [bool(GroupShape(4, 2, 2).members(rank, 12)) for rank in range(12)] == [True] * 8 + [
        False
    ] * 4


def test_quick_measures_the_extremes_only() -> None:
    assert group_shapes(4, 8, quick=True) == [
        GroupShape(2, 1, 1), GroupShape(8, 1, 1), GroupShape(2, 1, 2), GroupShape(2, 1, 4),
        GroupShape(32, 4, 1), GroupShape(4, 4, 8),
    ]  # fmt: skip
