"""The split products of ``products`` as torch operators.

The compiler takes each as one node, where a function with a collective would break the graph;
its selective recomputation can keep their outputs. Eager training uses the autograd functions of
``tensor``, whose dispatch is cheaper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.model.kernels import Kernels
from trainer.parallel.collectives import Group
from trainer.parallel.products import column_backward, gather_sequence, scatter_sum

_groups: dict[str, Group] = {}
_kernels: dict[str, Kernels] = {}


def named(group: Group, kernels: Kernels) -> str:
    """The name by which the operators find the group and its kernels from now on."""
    name: str = group.handle.group_name
    _groups[name], _kernels[name] = group, kernels
    return name


@torch.library.custom_op("meshtune::column_linear", mutates_args=())
def column_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: str, ranks: int, sequence: bool
) -> Tensor:
    """x W^T with W's rows over the group; x whole, or with ``sequence`` a share of it."""
    whole = gather_sequence(x, _groups[group])[0] if sequence else x
    return _kernels[group].outputs(whole, weight, bias)


@column_linear.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: str, ranks: int, sequence: bool
) -> Tensor:
    length = x.size(0) * ranks if sequence else x.size(0)
    return x.new_empty(length, x.size(1), weight.size(0))


@torch.library.custom_op("meshtune::column_linear_backward", mutates_args=())
def _column_linear_backward(
    grad: Tensor, x: Tensor, weight: Tensor, has_bias: bool, group: str, sequence: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad_x, grad_weight, grad_bias = column_backward(
        grad, x, weight, weight, has_bias, _groups[group], sequence, _kernels[group]
    )
    return grad_x, grad_weight, grad.new_empty(0) if grad_bias is None else grad_bias


@_column_linear_backward.register_fake
def _(
    grad: Tensor, x: Tensor, weight: Tensor, has_bias: bool, group: str, sequence: bool
) -> tuple[Tensor, Tensor, Tensor]:
    bias = grad.new_empty(weight.size(0) if has_bias else 0)
    return torch.empty_like(x), torch.empty_like(weight), bias


def _column_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.group, _, ctx.sequence = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, weight)


def _column_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    grad_x, grad_weight, grad_bias = _column_linear_backward(
        grad.contiguous(), x, weight, ctx.has_bias, ctx.group, ctx.sequence
    )
    return grad_x, grad_weight, grad_bias if ctx.has_bias else None, None, None, None


column_linear.register_autograd(_column_gradients, setup_context=_column_setup)


@torch.library.custom_op("meshtune::row_linear", mutates_args=())
def row_linear(x: Tensor, weight: Tensor, group: str, ranks: int, sequence: bool) -> Tensor:
    """The sum over the group of x W^T, W's columns being over it; with ``sequence`` a share."""
    total = _kernels[group].outputs(x, weight)
    if sequence:
        return scatter_sum(total, _groups[group])[0]
    _groups[group].all_reduce(total, "tensor")
    return total


@row_linear.register_fake
def _(x: Tensor, weight: Tensor, group: str, ranks: int, sequence: bool) -> Tensor:
    length = x.size(0) // ranks if sequence else x.size(0)
    return x.new_empty(length, x.size(1), weight.size(0))


@torch.library.custom_op("meshtune::gather_sequence", mutates_args=())
def _gathered(x: Tensor, group: str, ranks: int) -> Tensor:
    return gather_sequence(x, _groups[group])[0]


@_gathered.register_fake
def _(x: Tensor, group: str, ranks: int) -> Tensor:
    return x.new_empty(x.size(0) * ranks, *x.shape[1:])


def _row_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.group, ctx.ranks, ctx.sequence = inputs
    ctx.save_for_backward(x, weight)


def _row_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    grad = _gathered(grad, ctx.group, ctx.ranks) if ctx.sequence else grad
    kernels = _kernels[ctx.group]
    grad_weight = kernels.weight_gradient(grad, x, weight)
    return kernels.input_gradient(grad, weight), grad_weight, None, None, None


row_linear.register_autograd(_row_gradients, setup_context=_row_setup)
