"""Products, tables and norms over a grid of ranks: algorithm 1 of Singh et al. 2024.

For y = x W^T, W's columns lie along y and its rows along x, or the reverse in every second layer,
so that one layer's outputs are the next one's inputs. Sequences, and rows of a rank's block of W,
are split along z.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from trainer.model.kernels import Bias, Kernels
from trainer.model.slices import Split
from trainer.parallel.collectives import Group
from trainer.parallel.grid.depth import Block
from trainer.parallel.mesh import Grid
from trainer.parallel.operators import column_linear, gathered, named, summed
from trainer.parallel.products import Sum, TensorParallel, gather_sequence
from trainer.parallel.tensor import ColumnLinear, look_up, split
from trainer.plan.config import TrainConfig


class _Gathered(torch.autograd.Function):
    """A block, gathered along z; its gradient is scattered."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, block: Block) -> Tensor:
        ctx.block = block
        return block.gather()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        return ctx.block.depth.scatter(grad, ctx.block), None


class Products:
    """Projections with inputs and outputs along two axes of the grid; one object for all layers.

    For the compiler, gathers, products and sums are custom operators.
    """

    def __init__(self, grid: Grid, kernels: Kernels, config: TrainConfig) -> None:
        self.inputs = grid.y.group  # None if this rank has all of them
        self.depth = grid.z.size
        self.outputs = TensorParallel(grid.x.group, False, kernels, config.overlap_all_reduce)
        self.blocks: dict[nn.Module, Block] = {}
        self.opaque = named(self.outputs) if config.compile else None
        self.sums: str | None = None
        if config.compile and self.inputs is not None:
            self.sums = named(replace(self.outputs, group=self.inputs))

    def add(self, module: Any, block: Block) -> None:
        """Compute a module's product with this block."""
        module.split, self.blocks[module] = self, block
        _blocks[id(block)] = block
        with torch.device("cpu"):
            # A tensor: as a plain number it would give each layer a graph of its own.
            module.number = torch.tensor(id(block))
            late = block.leaf is block.depth.anchor
            module.anchor = torch.empty(0, requires_grad=True) if late else None

    def product(self, module: Any, x: Tensor) -> Tensor:
        """See ``SplitProduct``."""
        weight, bias = module.weight, module.bias
        if self.opaque is None:
            return self.linear(x, self.blocks[module], bias)
        if self.depth > 1:
            leaf = weight if module.anchor is None else module.anchor
            weight = _gathered_block(x, leaf, module.number, weight.size(0) * self.depth)
        if self.sums is None:
            return column_linear(x, weight, bias, self.opaque, 1)
        total = summed(column_linear(x, weight, None, self.opaque, 1), self.sums)
        return total if bias is None else total + bias

    def linear(self, x: Tensor, block: Block, bias: Bias) -> Tensor:
        """A product without custom operators.

        ``x`` is (sequence, batch / gz, inputs / ranks of ``inputs``); the result has outputs /
        ranks of ``outputs``.
        """
        weight = _Gathered.apply(block.leaf, block)
        if self.inputs is None:
            return ColumnLinear.apply(x, weight, bias, self.outputs)
        total = Sum.apply(ColumnLinear.apply(x, weight, None, self.outputs), self.inputs, False)
        return total if bias is None else total + bias


_blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()
"""Blocks by number, for the compiler's operators."""


@torch.library.custom_op("meshtune::gather_block", mutates_args=())
def _gathered_block(x: Tensor, leaf: Tensor, number: Tensor, rows: int) -> Tensor:
    """A gathered block of ``rows`` rows, for the input x; see ``Block.leaf``."""
    return _blocks[int(number)].gather()


@torch.library.custom_op("meshtune::scatter_block", mutates_args=())
def _scattered(grad: Tensor, leaf: Tensor, number: Tensor) -> Tensor:
    block = _blocks[int(number)]
    if block.depth.scatters_late:
        # The collective still reads it after this returns, when the compiler reuses the memory.
        grad = grad.to(block.depth.wire, copy=True)
    share = block.depth.scatter(grad, block)
    return torch.empty_like(leaf) if share is None else share


_gathered_block.register_fake(lambda x, leaf, number, rows: x.new_empty(rows, x.size(-1)))
_scattered.register_fake(lambda grad, leaf, number: torch.empty_like(leaf))
_gathered_block.register_autograd(
    lambda ctx, grad: (None, _scattered(grad, *ctx.saved_tensors), None, None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[1:3]),
)


def lookup(tokens: Tensor, block: Block, words: Group | None) -> Tensor:
    """Vectors of tokens, (sequence, batch / gz) to (sequence, batch / gz, hidden / gy).

    The ranks of ``words`` have the other rows of the table.
    """
    return look_up(tokens, _Gathered.apply(block.leaf, block), words, False)


class _Norm(torch.autograd.Function):
    """Layer norm, or without bias RMS norm, of vectors that are split over ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Bias, eps: float, group: Group | str, ranks: int
    ) -> Tensor:
        values = x.float()
        mean, square = _moments(values, group, ranks, centred=bias is not None)
        scale = (square + eps).rsqrt_()
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.group, ctx.ranks, ctx.centred = group, ranks, bias is not None
        result = (values - mean) * scale * weight
        return (result if bias is None else result + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        normal = (x.float() - mean) * scale
        grad = grad.float()
        wide = grad * weight
        # The two sums that a vector's parts share, as means over its features.
        sums = torch.stack((wide.mean(-1), (wide * normal).mean(-1)))
        sums = (summed(sums, ctx.group) / ctx.ranks)[..., None]
        inner = wide - normal * sums[1]
        grad_x = scale * (inner - sums[0] if ctx.centred else inner)
        grad_weight = (grad * normal).flatten(0, 1).sum(0).to(weight.dtype)
        grad_bias = grad.flatten(0, 1).sum(0).to(weight.dtype) if ctx.centred else None
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None, None


def _moments(
    values: Tensor, group: Group | str, ranks: int, centred: bool
) -> tuple[Tensor, Tensor]:
    """Mean (0 unless ``centred``) and mean square about it, over all ranks' equal parts."""
    mean = values.mean(-1) if centred else values.new_zeros(values.shape[:-1])
    own = torch.stack((mean, (values - mean[..., None]).square().mean(-1)))
    if isinstance(group, str):
        every = gathered(own, group, ranks)
    else:
        every = gather_sequence(own, group)[0]
    means, squares = every.unflatten(0, (ranks, 2)).unbind(1)
    total = means.mean(0)
    between = (means - total).square().mean(0)
    return total[..., None], (squares.mean(0) + between)[..., None]


class SplitNorm(nn.Module):
    """A norm of (sequence, batch, features / ranks); a named group is for the compiler."""

    def __init__(self, whole: nn.LayerNorm | nn.RMSNorm, by: Split, group: Group | str) -> None:
        super().__init__()
        assert whole.eps is not None  # as the model builds it
        self.group, self.ranks, self.eps = group, by.rows.ranks, whole.eps
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(whole, name, None))
        split(self, {"weight": by, "bias": by})

    def forward(self, x: Tensor) -> Tensor:
        return _Norm.apply(x, self.weight, self.bias, self.eps, self.group, self.ranks)
