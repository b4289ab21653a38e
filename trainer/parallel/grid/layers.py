"""Products, tables and norms over a grid of ranks: algorithm 1 of Singh et al. 2024.

For y = x W^T, W's columns lie along y and its rows along x, or the reverse in every second layer,
so that one layer's outputs are the next one's inputs. Sequences, and rows of a rank's block of W,
are split along z.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.parallel.collectives import Group
from trainer.parallel.grid.depth import Block
from trainer.parallel.products import Sum


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
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, group: Group
    ) -> Tensor:
        values = x.float()
        mean, square = _moments(values, group, centred=bias is not None)
        scale = (square + eps).rsqrt_()
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.group, ctx.centred = group, bias is not None
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
        ctx.group.all_reduce(sums, "tensor")
        sums = sums.div_(ctx.group.size)[..., None]
        inner = wide - normal * sums[1]
        grad_x = scale * (inner - sums[0] if ctx.centred else inner)
        grad_weight = (grad * normal).flatten(0, 1).sum(0).to(weight.dtype)
        grad_bias = grad.flatten(0, 1).sum(0).to(weight.dtype) if ctx.centred else None
        return grad_x.to(x.dtype), grad_weight, grad_bias, None, None


def _moments(values: Tensor, group: Group, centred: bool) -> tuple[Tensor, Tensor]:
    """Mean (or 0) and mean square about it, from those of each rank's equal part."""
    mean = values.mean(-1) if centred else values.new_zeros(values.shape[:-1])
    own = torch.stack((mean, (values - mean[..., None]).square().mean(-1)))
    every = own.new_empty(group.size, *own.shape)
    group.all_gather(every.flatten(0, 1), own, "tensor")
    means, squares = every.unbind(1)
    total = means.mean(0)
    between = (means - total).square().mean(0)
    return total[..., None], (squares.mean(0) + between)[..., None]


def norm(x: Tensor, module: nn.LayerNorm | nn.RMSNorm, group: Group | None) -> Tensor:
    """The module's norm of vectors whose features are split over the group.

    ``x`` is (sequence, batch, features / ranks), and the module has this rank's part of its
    vectors.
    """
    return _Norm.apply(x, module.weight, getattr(module, "bias", None), module.eps, group)
