"""The layout of a stage's parameters on the grid.

| parameter | rows along | columns along | rows cut again along |
|---|---|---|---|
| query, key, value; up, gate; embedding, head | x | y | z |
| attention output; down | y | x | z |

Hidden states are split along y, heads and inner channels along x. Vectors are split like their
features and replicated along z, where their gradients are summed once a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trainer.model.kernels import Kernels
from trainer.model.slices import Cut, Split
from trainer.model.transformer import Stage
from trainer.parallel.collectives import Group
from trainer.parallel.grid.depth import Block, Depth
from trainer.parallel.grid.layers import Products, SplitNorm, lookup
from trainer.parallel.mesh import Grid, Mesh, MeshAxis
from trainer.parallel.tensor import split
from trainer.plan.config import TrainConfig


def parallelize(
    stage: Stage, mesh: Mesh, depth: Depth, kernels: Kernels, config: TrainConfig
) -> None:
    """Split a stage that has no storage yet (meta device) over the grid."""
    grid = mesh.grid
    blocks: list[Block] = []  # in the order of a forward pass

    def add(module: nn.Module, layer: int = -1, source: Block | None = None) -> Block:
        blocks.append(Block(module, depth, layer, source))
        if len(blocks) > 1:
            blocks[-2].next = blocks[-1]
        return blocks[-1]

    along = {way: Products(way, kernels, config) for way in (grid, grid.transposed)}
    table: Block | None = None
    if stage.embedding is not None:
        table = add(stage.embedding)
        forward = functools.partial(lookup, block=table, words=grid.x.group)
        _replace(stage.embedding, {"weight": _matrix(grid)}, forward)
    if stage.positions is not None:
        split(stage.positions, {"weight": _of(columns=grid.y)})
    layers: dict[str, Any] = dict(stage.blocks.items())
    for name, layer in layers.items():
        for place in ("attention_norm", "mlp_norm"):
            _norm(layer, place, grid, along[grid].sums or grid.y.group)
        attention, mlp = layer.attention, layer.mlp
        for first, last in ((attention.qkv, attention.out), (mlp.up, mlp.down)):
            for module, way in ((first, grid), (last, grid.transposed)):
                split(module, {"weight": _matrix(way), "bias": _of(rows=way.x)})
                along[way].add(module, add(module, int(name)))
    if stage.norm is not None and stage.head is not None:
        _norm(stage, "norm", grid, grid.y.group)
        tied = table if stage.head.weight is None else None
        logits = add(stage.head, source=tied)
        forward = functools.partial(_head, logits, along[grid])
        _replace(stage.head, {"weight": _matrix(grid)}, forward)


def _head(block: Block, by: Products, x: Tensor, tied: Tensor | None) -> Tensor:
    """Logits; ``tied`` is ignored: the block has the embedding's weights."""
    return by.linear(x, block, None)


def _norm(module: nn.Module, name: str, grid: Grid, group: Group | str | None) -> None:
    """Split a module's norm over a ``group``, if any; a named one is for the compiler."""
    if group is not None:
        setattr(module, name, SplitNorm(getattr(module, name), _of(rows=grid.y), group))


def _replace(module: Any, splits: dict[str, Split], forward: Callable[..., Tensor]) -> None:
    """Shrink a module's parameters to this rank's part, and replace its computation."""
    split(module, splits)
    module.forward = forward


def _matrix(grid: Grid) -> Split:
    return _of(rows=grid.x, columns=grid.y, again=grid.z)


def _of(**along: MeshAxis) -> Split:
    """A split of ``rows``, ``columns``, rows ``again``; each axis may have one rank only."""
    held = {name: axis for name, axis in along.items() if axis.size > 1}
    cuts = {name: Cut(axis.rank, axis.size) for name, axis in held.items()}
    return Split(tuple(sorted(axis.name for axis in held.values())), **cuts)
