"""The split products of ``products`` as torch operators.

The compiler takes each as one node: a plain collective would break the graph, which would also keep
the first pass's choice of kernels. Its selective recomputation can keep the operators' outputs.
Eager training uses the autograd functions of ``tensor``, whose dispatch is cheaper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.parallel.collectives import Group
from trainer.parallel.products import TensorParallel, gather_sequence, scatter_sum

_named: dict[str, TensorParallel] = {}


def named(by: TensorParallel) -> str:
    """Register products; returns the name by which the operators find them."""
    name = "" if by.group is None else f"{by.group.handle.group_name} {by.sequence}"
    _named[name] = by
    return name


@torch.library.custom_op("meshtune::column_linear", mutates_args=())
def column_linear(x: Tensor, weight: Tensor, bias: Tensor | None, by: str, ranks: int) -> Tensor:
    """x W^T with W's rows over a group; x is gathered from the shares of so many ``ranks``."""
    return _named[by].column_outputs(x, weight, bias)


column_linear.register_fake(
    lambda x, weight, bias, by, ranks: x.new_empty(x.size(0) * ranks, x.size(1), weight.size(0))
)


@torch.library.custom_op("meshtune::row_linear", mutates_args=())
def row_linear(x: Tensor, weight: Tensor, by: str, ranks: int) -> Tensor:
    """Sum of x W^T over a group, which splits W's columns; scattered over so many ``ranks``."""
    product = _named[by]
    if product.sequence and product.group.fused:
        return product.group.product_scatter(x, weight.t())
    total = product.kernels.outputs(x, weight)
    if product.sequence:
        return scatter_sum(total, product.group)[0]
    product.group.all_reduce(total, "tensor")
    return total


row_linear.register_fake(
    lambda x, weight, by, ranks: x.new_empty(x.size(0) // ranks, x.size(1), weight.size(0))
)


@torch.library.custom_op("meshtune::product_backward", mutates_args=())
def _product_backward(
    grad: Tensor, x: Tensor, weight: Tensor, has_bias: bool, by: str, row: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, W and the bias (empty without one).

    No product is deferred: the compiler reuses the memory of ``grad`` and ``x`` afterwards.
    """
    if row:
        found = *_named[by].row_backward(grad, x, weight, weight), None
    else:
        found = _named[by].column_backward(grad, x, weight, weight, has_bias)
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
    x, weight, bias, by, _ = inputs
    ctx.rest = bias is not None, by, False
    ctx.save_for_backward(x, weight)


def _column_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    found = _product_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.rest)
    has_bias, *_ = ctx.rest
    return *found[:2], found[2] if has_bias else None, None, None


def _row_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, by, _ = inputs
    ctx.rest = False, by, True
    ctx.save_for_backward(x, weight)


def _row_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    found = _product_backward(grad.contiguous(), *ctx.saved_tensors, *ctx.rest)
    return *found[:2], None, None


column_linear.register_autograd(_column_gradients, setup_context=_column_setup)
row_linear.register_autograd(_row_gradients, setup_context=_row_setup)


@torch.library.custom_op("meshtune::gather_sequence", mutates_args=())
def gathered(x: Tensor, by: str, ranks: int) -> Tensor:
    return gather_sequence(x, _named[by].group)[0]


gathered.register_fake(lambda x, by, ranks: x.new_empty(x.size(0) * ranks, *x.shape[1:]))


@torch.library.custom_op("meshtune::all_reduce", mutates_args=())
def _summed(x: Tensor, by: str) -> Tensor:
    return summed(x.clone(), _named[by].group)


_summed.register_fake(lambda x, by: torch.empty_like(x))
_summed.register_autograd(lambda ctx, grad: (grad, None))


def summed(x: Tensor, group: Group | str) -> Tensor:
    """Sum over the ranks, possibly in place; with the name of products by a custom operator."""
    if isinstance(group, str):
        return _summed(x, group)
    group.all_reduce(x, "tensor")
    return x
