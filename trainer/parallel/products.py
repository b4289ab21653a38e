"""Matrix products whose operands are split over tensor-parallel ranks, with their collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
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


@dataclass(frozen=True)
class TensorParallel:
    """Products of layers whose weights are split over a group's ranks, if there is one.

    ``sequence``: ranks hold shares of a sequence where they do not hold shares of features.
    ``overlap``: the input's gradient is summed while the weight's is computed.
    """

    group: Any  # Group, or None
    sequence: bool
    kernels: Kernels
    overlap: bool = True

    @cached_property
    def alone(self) -> TensorParallel:
        """Products of this rank alone."""
        return replace(self, group=None, sequence=False)

    def column_outputs(self, x: Tensor, weight: Tensor, bias: Bias) -> Tensor:
        """x W^T with W's rows over the ranks."""
        if self.sequence and self.group.fused:
            outputs = self.group.gather_product(x, weight.t(), keeps=False)[1]
            return outputs if bias is None else outputs.add_(bias)
        whole = gather_sequence(x, self.group)[0] if self.sequence else x
        return self.kernels.outputs(whole, weight, bias)

    def column_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, parameter: Tensor, has_bias: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Gradients of x, W (the parameter) and the bias."""
        gathering: Any = None
        summing: Any = None
        if self.sequence:
            x, gathering = gather_sequence(x, self.group, async_op=True)
        grad_x = self.kernels.input_gradient(grad, weight)
        if self.sequence:
            gathering.wait()
            grad_x, summing = scatter_sum(grad_x, self.group, async_op=True)
        elif self.group is not None:
            summing = self.group.all_reduce(grad_x, "tensor", async_op=self.overlap)
        kernels = self.kernels
        beside = kernels.weight_gradient if self.group is None else kernels.behind_sum
        grad_weight = beside(grad, x, parameter)
        grad_bias = grad.flatten(0, 1).sum(0) if has_bias else None
        if summing is not None:
            summing.wait()
        return grad_x, grad_weight, grad_bias

    def row_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, parameter: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x and W (the parameter, columns over the ranks)."""
        if self.sequence and self.group.fused:
            grad, grad_x = self.group.gather_product(grad, weight, keeps=True)
        else:
            grad = gather_sequence(grad, self.group)[0] if self.sequence else grad
            grad_x = self.kernels.input_gradient(grad, weight)
        return grad_x, self.kernels.weight_gradient(grad, x, parameter)


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
