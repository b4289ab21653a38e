"""The layout of a stage's parameters on the grid.

| parameter | rows along | columns along | rows cut again along |
|---|---|---|---|
| query, key, value; up, gate; embedding, head | x | y | z |
| what attention gives; down | y | x | z |

Hidden states are split along y, heads and inner channels along x. Vectors are split as their
features and equal on all ranks along z, which sum their gradients once a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trainer.model.kernels import Kernels
from trainer.model.linear import Linear
from trainer.model.slices import Cut, Split
from trainer.model.transformer import Stage
from trainer.parallel.grid.depth import Block, Depth, Order
from trainer.parallel.grid.layers import linear, lookup, norm
from trainer.parallel.mesh import Axis, Grid, Mesh
from trainer.parallel.tensor import split
from trainer.plan.config import TrainConfig


def parallelize(
    stage: Stage, mesh: Mesh, depth: Depth, kernels: Kernels, config: TrainConfig
) -> None:
    """Split a stage that has no storage yet (meta device) over the grid."""
    grid, overlap = mesh.grid, config.overlap_all_reduce
    order = Order(stage, depth, kernels)
    table: Block | None = None
    if stage.embedding is not None:
        table = order.add(stage.embedding)
        forward = functools.partial(lookup, block=table, words=grid.x.group)
        _replace(stage.embedding, {"weight": _matrix(grid)}, forward)
    if stage.positions is not None:
        split(stage.positions, {"weight": _of(columns=grid.y)})
    layers: dict[str, Any] = dict(stage.blocks.items())
    for name, layer in layers.items():
        layer.repeat_attention_only()
        _norm(layer.attention_norm, grid)
        _linear(layer.attention.qkv, grid, order, int(name), overlap)
        _linear(layer.attention.out, grid.transposed, order, int(name), overlap)
        _norm(layer.mlp_norm, grid)
        _linear(layer.mlp.up, grid, order, int(name), overlap)
        _linear(layer.mlp.down, grid.transposed, order, int(name), overlap)
    if stage.norm is not None and stage.head is not None:
        _norm(stage.norm, grid)
        tied = table if stage.head.weight is None else None
        logits = order.add(stage.head, source=tied)
        forward = functools.partial(_head, logits, grid, overlap)
        _replace(stage.head, {"weight": _matrix(grid)}, forward)


def _head(block: Block, grid: Grid, overlap: bool, x: Tensor, tied: Tensor | None) -> Tensor:
    """Logits; where the weights are the embedding's, the block knows."""
    return linear(x, block, None, grid.y.group, grid.x.group, overlap)


def _linear(module: Linear, grid: Grid, order: Order, layer: int, overlap: bool) -> None:
    block = order.add(module, layer)

    def forward(x: Tensor) -> Tensor:
        return linear(x, block, module.bias, grid.y.group, grid.x.group, overlap)

    _replace(module, {"weight": _matrix(grid), "bias": _of(rows=grid.x)}, forward)


def _norm(module: nn.Module, grid: Grid) -> None:
    if grid.y.size > 1:
        along = _of(rows=grid.y)
        forward = functools.partial(norm, module=module, group=grid.y.group)
        _replace(module, {name: along for name, _ in module.named_parameters()}, forward)


def _replace(module: Any, splits: dict[str, Split], forward: Callable[..., Tensor]) -> None:
    """Shrink a module's parameters to this rank's part, and replace its computation."""
    split(module, splits)
    module.forward = forward


def _matrix(grid: Grid) -> Split:
    return _of(rows=grid.x, columns=grid.y, again=grid.z)


def _of(rows: Axis | None = None, columns: Axis | None = None, again: Axis | None = None) -> Split:
    """A split along these axes, each of which may have one rank only."""
    named = {"rows": rows, "columns": columns, "again": again}
    held = {name: axis for name, axis in named.items() if axis is not None and axis.size > 1}
    cuts = {name: Cut(axis.rank, axis.size) for name, axis in held.items()}
    return Split(tuple(sorted(axis.name for axis in held.values())), **cuts)
