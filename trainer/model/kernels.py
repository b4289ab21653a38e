"""Matrix products of layers, and the choice of kernel for each.

BLAS kernels for operands stored by rows (N) and by columns (T) differ in speed. A layer's products
are NT (outputs), NN (input gradients) and TN (weight gradients); another form copies an operand,
which pays if its kernel is much faster (Singh et al. 2024, section V-C).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.linear import Linear
from trainer.model.transformer import Head, Stage

Form = Literal["NN", "NT", "TN"]
FORMS: tuple[Form, ...] = ("NN", "NT", "TN")


class Kernels:
    """The three products of a layer y = x W^T, as torch computes them.

    x is (sequence, batch, inputs), W (outputs, inputs).
    """

    own_gradients = False
    """Whether gradients are these kernels' own where no axis splits a layer, not autograd's."""

    @property
    def of_head(self) -> Kernels:
        """Kernels for the output layer."""
        return self

    def outputs(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """y, with the bias added."""
        return F.linear(x, weight, bias)

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        """Gradient of x, from that of y."""
        return grad @ weight

    def weight_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        """Gradient of W, from that of y; None if it is deferred."""
        return grad.flatten(0, 1).t() @ x.flatten(0, 1)

    def behind_sum(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        """``weight_gradient`` computed while the gradient of x is all-reduced, to hide that."""
        return self.weight_gradient(grad, x, weight)


class Product(NamedTuple):
    """One matrix product, (rows, inner) times (inner, columns), and the form of its operands."""

    form: Form
    rows: int
    inner: int
    columns: int
    bias: bool = False

    def __str__(self) -> str:
        sizes = f"{self.form} {self.rows}x{self.inner}x{self.columns}"
        return f"{sizes} + bias" if self.bias else sizes


class TunedKernels(Kernels):
    """Each product in the form that was chosen for it, else as torch computes it.

    ``calls`` has how often each product was asked for, while ``counts``.
    """

    own_gradients = True

    def __init__(self) -> None:
        self.forms: dict[Product, Form] = {}
        self.calls: Counter[Product] = Counter()
        self.counts = True

    def outputs(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = Product("NT", x.size(0) * x.size(1), x.size(2), weight.size(0), bias is not None)
        if form := self._other_form(product):
            return like(x, in_form(form, product, x.flatten(0, 1), weight.t(), bias))
        return super().outputs(x, weight, bias)

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        product = Product("NN", grad.size(0) * grad.size(1), grad.size(2), weight.size(1))
        if form := self._other_form(product):
            return like(grad, in_form(form, product, grad.flatten(0, 1), weight))
        return super().input_gradient(grad, weight)

    def weight_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        product = Product("TN", grad.size(2), grad.size(0) * grad.size(1), x.size(2))
        if form := self._other_form(product):
            return in_form(form, product, grad.flatten(0, 1).t(), x.flatten(0, 1))
        return super().weight_gradient(grad, x, weight)

    def _other_form(self, product: Product) -> Form | None:
        """The form that was chosen in place of the product's own."""
        if self.counts:
            self.calls[product] += 1
        form = self.forms.get(product, product.form)
        return None if form == product.form else form


def in_form(
    form: Form, product: Product, left: Tensor, right: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The product in a form; operands stored otherwise are copied.

    ``left`` is (rows, inner) and ``right`` (inner, columns), stored as ``product`` says; ``bias``,
    (columns), is added to each row.
    """
    left, right = (
        operand if now == wanted else _stored(operand, wanted)
        for operand, now, wanted in zip((left, right), product.form, form, strict=True)
    )
    return left @ right if bias is None else torch.addmm(bias, left, right)


def like(x: Tensor, rows: Tensor) -> Tensor:
    """Rows as (sequence, batch, ...); no view, for sums over ranks are made in place."""
    return torch.ops.aten._unsafe_view(rows, (*x.shape[:2], rows.size(1)))


def _stored(matrix: Tensor, way: str) -> Tensor:
    return matrix.contiguous() if way == "N" else matrix.t().contiguous().t()


class _Whole(torch.autograd.Function):
    """x W^T of a layer that no axis splits."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        ctx.kernels, ctx.has_bias = kernels, bias is not None
        ctx.parameter = weight  # what is saved may be a copy's view, where layers are recomputed
        ctx.save_for_backward(x, weight)
        return kernels.outputs(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = ctx.kernels.input_gradient(grad, weight)
        grad_weight = ctx.kernels.weight_gradient(grad, x, ctx.parameter)
        return grad_x, grad_weight, grad.flatten(0, 1).sum(0) if ctx.has_bias else None, None


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, kernels: Kernels) -> Tensor:
    """x W^T of what this rank has, with its gradients, by these kernels."""
    if not kernels.own_gradients:
        return kernels.outputs(x, weight, bias)  # autograd's own gradients, which cost it less
    return _Whole.apply(x, weight, bias, kernels)


def use(kernels: Kernels, stage: Stage) -> None:
    """Let a stage that no axis splits compute its projections and logits by these kernels."""
    computed: dict[type, Callable[..., Tensor]] = {Linear: _linear, Head: _head}
    modules: list[Any] = [*stage.modules()]
    for module in modules:
        if type(module) in computed:
            own = kernels if isinstance(module, Linear) else kernels.of_head
            module.forward = functools.partial(computed[type(module)], module, own)


def _linear(module: Linear, kernels: Kernels, x: Tensor) -> Tensor:
    return multiply(x, module.weight, module.bias, kernels)


def _head(module: Head, kernels: Kernels, x: Tensor, tied: Tensor | None) -> Tensor:
    return multiply(x, module.weight if tied is None else tied, None, kernels)
