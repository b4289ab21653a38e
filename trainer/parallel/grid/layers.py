"""Products, tables and norms over a grid of ranks: algorithm 1 of Singh et al. 2024.

For y = x W^T, W's columns lie along y and its rows along x, or the reverse in every second layer,
so that one layer's outputs are the next one's inputs. Sequences, and rows of a rank's block of W,
are split along z.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.slices import Split
from trainer.model.transformer import NORM_EPS
from trainer.parallel.collectives import Group
from trainer.parallel.grid.depth import Block
from trainer.parallel.mesh import Grid
from trainer.parallel.operators import gathered, summed
from trainer.parallel.products import Sum
from trainer.parallel.tensor import split


class _Product(torch.autograd.Function):
    """x W^T of this rank's inputs: a partial sum of this rank's outputs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        leaf: Tensor,
        bias: Tensor | None,
        block: Block,
        outputs: Group | None,
        overlap: bool,
    ) -> Tensor:
        whole = block.gather()
        ctx.save_for_backward(x, whole)
        ctx.block, ctx.outputs, ctx.overlap = block, outputs, overlap
        ctx.has_bias = bias is not None
        return block.kernels.outputs(x, whole, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, whole = ctx.saved_tensors
        kernels = ctx.block.kernels
        grad_x = kernels.input_gradient(grad, whole)
        summing: Any = None
        if ctx.outputs is not None:
            summing = ctx.outputs.all_reduce(grad_x, "tensor", async_op=ctx.overlap)
        grad_weight = kernels.weight_gradient(grad, x, ctx.block.weight)
        grad_weight = ctx.block.depth.scatter(grad_weight, ctx.block)
        grad_bias = grad.flatten(0, 1).sum(0) if ctx.has_bias else None
        if summing is not None:
            summing.wait()
        return grad_x, grad_weight, grad_bias, None, None, None


def linear(
    x: Tensor,
    block: Block,
    bias: Tensor | None,
    inputs: Group | None,
    outputs: Group | None,
    overlap: bool,
) -> Tensor:
    """A layer of the network.

    ``x`` is (sequence, batch / gz, inputs / ranks of ``inputs``); the result has outputs / ranks of
    ``outputs``. A group is None if this rank has all of that dimension. ``overlap``: the input's
    gradient is summed while the weights' is computed.
    """
    if inputs is None:
        return _Product.apply(x, block.leaf, bias, block, outputs, overlap)
    total = _Product.apply(x, block.leaf, None, block, outputs, overlap)
    total = Sum.apply(total, inputs, False)
    return total if bias is None else total + bias


class Products:
    """Projections with inputs and outputs along two axes of the grid; one object for all layers.

    ``opaque``: each is an operator for the compiler, below.
    """

    def __init__(self, grid: Grid, overlap: bool, opaque: bool) -> None:
        self.inputs, self.outputs, self.depth = grid.y.group, grid.x.group, grid.z.size
        self.overlap, self.opaque, self.late = overlap, opaque, False
        self.blocks: dict[nn.Module, Block] = {}

    def add(self, module: Any, block: Block) -> None:
        """Compute a module's product with this block."""
        module.split, self.blocks[module] = self, block
        self.late = block.scatters_late
        # A tensor: a number would be part of the graph, of which each layer had its own.
        module.number = torch.tensor(next(_numbers), device="cpu")
        _blocks[int(module.number)] = block

    def product(self, module: Any, x: Tensor) -> Tensor:
        """See ``SplitProduct``."""
        bias = module.bias
        if not self.opaque:
            return linear(x, self.blocks[module], bias, self.inputs, self.outputs, self.overlap)
        own, after = (bias, None) if self.inputs is None else (None, bias)
        leaf = None if self.late else module.weight
        rows = module.weight.size(0) * self.depth
        total, _ = _grid_linear(x, leaf, own, module.number, rows, self.depth > 1)
        return total if after is None else total + after


_numbers = itertools.count()
_blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()
"""Blocks by number, for the compiler's operators."""


@torch.library.custom_op("meshtune::grid_linear", mutates_args=())
def _grid_linear(
    x: Tensor, leaf: Tensor | None, bias: Tensor | None, number: Tensor, rows: int, gathers: bool
) -> tuple[Tensor, Tensor]:
    """The product, summed, and the block of so many rows if it was gathered; see ``Block.leaf``."""
    block = _blocks[int(number)]
    whole = block.gather()
    total = block.kernels.outputs(x, whole, bias)
    inputs = block.module.split.inputs
    if inputs is not None:
        inputs.all_reduce(total, "tensor")
    return total, whole if gathers else x.new_empty(0)


@_grid_linear.register_fake
def _(
    x: Tensor, leaf: Tensor | None, bias: Tensor | None, number: Tensor, rows: int, gathers: bool
) -> tuple[Tensor, Tensor]:
    whole = x.new_empty((rows, x.size(-1)) if gathers else (0,))
    return x.new_empty(*x.shape[:-1], rows), whole


@torch.library.custom_op("meshtune::grid_linear_backward", mutates_args=())
def _grid_linear_backward(
    grad: Tensor, x: Tensor, whole: Tensor, number: Tensor, rows: int, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, of ``rows`` of the weights and of the bias; 0: they are scattered late."""
    block = _blocks[int(number)]
    ways = block.module.split
    context = SimpleNamespace(
        saved_tensors=(x, whole), block=block, outputs=ways.outputs, overlap=ways.overlap,
        has_bias=has_bias,
    )  # fmt: skip
    found = _Product.backward(context, grad)[:3]
    of_x, of_weight, of_bias = (grad.new_empty(0) if one is None else one for one in found)
    return of_x, of_weight, of_bias


@_grid_linear_backward.register_fake
def _(
    grad: Tensor, x: Tensor, whole: Tensor, number: Tensor, rows: int, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    of_weight = grad.new_empty((rows, whole.size(1)) if rows else (0,))
    return x.new_empty(x.shape), of_weight, grad.new_empty(whole.size(0) if has_bias else 0)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, leaf, bias, number, _, gathers = inputs
    ctx.rows, ctx.has_bias = 0 if leaf is None else leaf.size(0), bias is not None
    ctx.save_for_backward(x, output[1] if gathers else leaf, number)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    of_x, of_weight, of_bias = _grid_linear_backward(
        grad.contiguous(), *ctx.saved_tensors, ctx.rows, ctx.has_bias
    )
    of_leaf, of_bias = of_weight if ctx.rows else None, of_bias if ctx.has_bias else None
    return of_x, of_leaf, of_bias, None, None, None


_grid_linear.register_autograd(_gradients, setup_context=_setup)


class _Lookup(torch.autograd.Function):
    """Rows of this rank's block of a table; zeros for words that others have."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, leaf: Tensor, block: Block, first: int) -> Tensor:
        whole = block.gather()
        local = tokens - first
        outside = (local < 0) | (local >= whole.size(0))
        local = local.masked_fill(outside, 0)
        ctx.save_for_backward(local, outside)
        ctx.block, ctx.words = block, whole.size(0)
        return F.embedding(local, whole).masked_fill_(outside[..., None], 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        local, outside = ctx.saved_tensors
        grad = grad.masked_fill(outside[..., None], 0.0)
        whole = torch.ops.aten.embedding_dense_backward(grad, local, ctx.words, -1, False)
        return None, ctx.block.depth.scatter(whole, ctx.block), None, None


def lookup(tokens: Tensor, block: Block, words: Group | None) -> Tensor:
    """Vectors of tokens, (sequence, batch / gz) to (sequence, batch / gz, hidden / gy).

    The ranks of ``words`` have the other rows of the table.
    """
    rows = block.weight.size(0) * (1 if block.depth.group is None else block.depth.group.size)
    first = 0 if words is None else words.rank * rows
    partial: Tensor = _Lookup.apply(tokens, block.leaf, block, first)
    return partial if words is None else Sum.apply(partial, words, False)


class _Norm(torch.autograd.Function):
    """Layer norm, or without bias RMS norm, of vectors that are split over ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: Group | str, ranks: int
    ) -> Tensor:
        values = x.float()
        mean, square = _moments(values, group, ranks, centred=bias is not None)
        scale = (square + NORM_EPS).rsqrt_()
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
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


def _moments(
    values: Tensor, group: Group | str, ranks: int, centred: bool
) -> tuple[Tensor, Tensor]:
    """Mean (or 0) and mean square about it, from those of each rank's equal part."""
    mean = values.mean(-1) if centred else values.new_zeros(values.shape[:-1])
    own = torch.stack((mean, (values - mean[..., None]).square().mean(-1)))
    means, squares = gathered(own, group, ranks).unflatten(0, (ranks, 2)).unbind(1)
    total = means.mean(0)
    between = (means - total).square().mean(0)
    return total[..., None], (squares.mean(0) + between)[..., None]


class SplitNorm(nn.Module):
    """A norm of vectors whose features are split over the group; a named one is the compiler's.

    The input is (sequence, batch, features / ranks).
    """

    def __init__(self, whole: nn.Module, by: Split, group: Group | str) -> None:
        super().__init__()
        self.group, self.ranks = group, by.rows.ranks
        for name in ("weight", "bias"):
            self.register_parameter(name, getattr(whole, name, None))
        split(self, {"weight": by, "bias": by})

    def forward(self, x: Tensor) -> Tensor:
        return _Norm.apply(x, self.weight, self.bias, self.group, self.ranks)
