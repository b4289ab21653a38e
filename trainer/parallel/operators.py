"""The split products of ``products`` as torch operators.

The compiler takes each as one node: a plain collective would break the graph, which would also keep
the first pass's choice of kernels. Its selective recomputation can keep the operators' outputs.
Eager training uses the autograd functions of ``tensor``, whose dispatch is cheaper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.model.kernels import Kernels
from trainer.parallel import products
from trainer.parallel.collectives import Group

_ALONE = ""
"""Name of kernels where no group takes part."""
_groups: dict[str, Any] = {_ALONE: None}
_kernels: dict[str, Kernels] = {}


def named(group: Group | None, kernels: Kernels) -> str:
    """Register a group and its kernels; returns the name by which the operators find them."""
    name: str = _ALONE if group is None else group.handle.group_name
    _groups[name], _kernels[name], _kernels[_ALONE] = group, kernels, kernels
    return name


@torch.library.custom_op("meshtune::column_linear", mutates_args=())
def column_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, group: str, ranks: int, sequence: bool
) -> Tensor:
    """x W^T with W's rows over the group; x whole, or with ``sequence`` a share of it."""
    return products.column_outputs(x, weight, bias, _groups[group], sequence, _kernels[group])


column_linear.register_fake(
    lambda x, weight, bias, group, ranks, sequence: x.new_empty(
        x.size(0) * (ranks if sequence else 1), x.size(1), weight.size(0)
    )
)


@torch.library.custom_op("meshtune::product_backward", mutates_args=())
def _product_backward(
    grad: Tensor, x: Tensor, weight: Tensor, has_bias: bool, group: str, sequence: bool, row: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, W and the bias (empty without one).

    No product is deferred: the compiler reuses the memory of ``grad`` and ``x`` afterwards.
    """
    given, among, kernels = (grad, x, weight, weight), _groups[group], _kernels[group]
    if row:
        found = *products.row_backward(*given, among, kernels), None
    else:
        found = products.column_backward(*given, has_bias, among, sequence, kernels)
    of_x, of_weight, of_bias = (grad.new_empty(0) if one is None else one for one in found)
    return of_x, of_weight, of_bias


_product_backward.register_fake(
    lambda grad, x, weight, has_bias, *_: (
        x.new_empty(x.shape),
        grad.new_empty(weight.shape),
        grad.new_empty(weight.size(0) if has_bias else 0),
    )
)


def _column_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.group, _, ctx.sequence = inputs
    ctx.has_bias, ctx.row = bias is not None, False
    ctx.save_for_backward(x, weight)


def _column_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_x, of_weight, of_bias = _product_backward(
        grad.contiguous(), *ctx.saved_tensors, ctx.has_bias, ctx.group, ctx.sequence, ctx.row
    )
    of_bias = of_bias if ctx.has_bias else None
    return of_x, of_weight, of_bias, None, None, None


column_linear.register_autograd(_column_gradients, setup_context=_column_setup)


@torch.library.custom_op("meshtune::row_linear", mutates_args=())
def row_linear(x: Tensor, weight: Tensor, group: str, ranks: int, sequence: bool) -> Tensor:
    """Sum of x W^T over the group, which splits W's columns; with ``sequence`` a share of it."""
    if sequence and _groups[group].fused:
        return _groups[group].product_scatter(x, weight.t())
    total = _kernels[group].outputs(x, weight)
    if sequence:
        return products.scatter_sum(total, _groups[group])[0]
    _groups[group].all_reduce(total, "tensor")
    return total


row_linear.register_fake(
    lambda x, weight, group, ranks, sequence: x.new_empty(
        x.size(0) // (ranks if sequence else 1), x.size(1), weight.size(0)
    )
)


@torch.library.custom_op("meshtune::gather_sequence", mutates_args=())
def gathered(x: Tensor, group: str, ranks: int) -> Tensor:
    return products.gather_sequence(x, _groups[group])[0]


gathered.register_fake(lambda x, group, ranks: x.new_empty(x.size(0) * ranks, *x.shape[1:]))


@torch.library.custom_op("meshtune::all_reduce", mutates_args=())
def _summed(x: Tensor, group: str) -> Tensor:
    return summed(x.clone(), _groups[group])


_summed.register_fake(lambda x, group: torch.empty_like(x))
_summed.register_autograd(lambda ctx, grad: (grad, None))


def summed(x: Tensor, group: Group | str) -> Tensor:
    """Sum over the ranks, possibly in place; with a group's name by a custom operator."""
    if isinstance(group, str):
        return _summed(x, group)
    group.all_reduce(x, "tensor")
    return x


def _row_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, group, _, ctx.row = inputs
    ctx.group, ctx.sequence, ctx.has_bias = group if ctx.row else _ALONE, False, False
    ctx.save_for_backward(x, weight)


row_linear.register_autograd(
    lambda ctx, grad: _column_gradients(ctx, grad)[:5], setup_context=_row_setup
)
