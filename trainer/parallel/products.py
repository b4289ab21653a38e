"""Matrix products whose operands are split over tensor-parallel ranks, with their collectives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.model.kernels import Bias, Kernels
from trainer.parallel.collectives import Group


def gather_sequence(x: Tensor, group: Group, async_op: bool = False) -> tuple[Tensor, Any]:
    """All-gather the ranks' tensors along the first dimension."""
    whole = x.new_empty(x.size(0) * group.size, *x.shape[1:])
    return whole, group.all_gather(whole, x.contiguous(), "tensor", async_op)


def scatter_sum(x: Tensor, group: Group, async_op: bool = False) -> tuple[Tensor, Any]:
    """Reduce-scatter over the ranks along the first dimension."""
    share = x.new_empty(x.size(0) // group.size, *x.shape[1:])
    return share, group.reduce_scatter(share, x.contiguous(), "tensor", async_op=async_op)


def column_outputs(
    x: Tensor, weight: Tensor, bias: Bias, group: Any, sequence: bool, kernels: Kernels
) -> Tensor:
    """x W^T with W's rows over the group, if any; x whole, or with ``sequence`` a share of it."""
    if sequence and group.fused:
        outputs = group.gather_product(x, weight.t(), keeps=False)[1]
        return outputs if bias is None else outputs.add_(bias)
    return kernels.outputs(gather_sequence(x, group)[0] if sequence else x, weight, bias)


def row_backward(
    grad: Tensor, x: Tensor, weight: Tensor, parameter: Tensor, group: Group, kernels: Kernels
) -> tuple[Tensor, Tensor | None]:
    """Gradients of x and W (columns over the group), from a share of the output's gradient."""
    if group.fused:
        whole, grad_x = group.gather_product(grad, weight, keeps=True)
    else:
        whole = gather_sequence(grad, group)[0]
        grad_x = kernels.input_gradient(whole, weight)
    return grad_x, kernels.weight_gradient(whole, x, parameter)


def column_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    parameter: Tensor,
    has_bias: bool,
    group: Any,
    sequence: bool,
    kernels: Kernels,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x, W (the parameter) and the bias; any sum of x's hides behind W's product."""
    gathering: Any = None
    summing: Any = None
    if sequence:
        x, gathering = gather_sequence(x, group, async_op=True)
    grad_x = kernels.input_gradient(grad, weight)
    if sequence:
        gathering.wait()
        grad_x, summing = scatter_sum(grad_x, group, async_op=True)
    elif group is not None:
        summing = group.all_reduce(grad_x, "tensor", async_op=True)
    beside = kernels.weight_gradient if group is None else kernels.behind_sum
    grad_weight = beside(grad, x, parameter)
    grad_bias = grad.flatten(0, 1).sum(0) if has_bias else None
    if summing is not None:
        summing.wait()
    return grad_x, grad_weight, grad_bias


class Shared(torch.autograd.Function):
    """Transpose of ``Sum``: all ranks read the same x, which ``sequence`` gathers from shares."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, sequence: bool) -> Tensor:
        ctx.group, ctx.sequence = group, sequence
        return gather_sequence(x, group)[0] if sequence else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.sequence:
            return scatter_sum(grad, ctx.group)[0], None, None
        grad = grad.clone(memory_format=torch.contiguous_format)
        ctx.group.all_reduce(grad, "tensor")
        return grad, None, None


class Sum(torch.autograd.Function):
    """Sum of the ranks' partial results; with ``sequence`` each keeps its share."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, sequence: bool) -> Tensor:
        ctx.group, ctx.sequence = group, sequence
        if sequence:
            return scatter_sum(x, group)[0]
        ctx.mark_dirty(x)
        group.all_reduce(x, "tensor")
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (gather_sequence(grad, ctx.group)[0] if ctx.sequence else grad), None, None
