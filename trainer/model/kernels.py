"""Matrix products of layers, and the choice of kernel for each.

BLAS kernels for operands stored by rows (N) and by columns (T) differ in speed. A layer's products
are NT (outputs), NN (input gradients) and TN (weight gradients); another form copies an operand,
which pays if its kernel is much faster (Singh et al. 2024, section V-C).
"""

from __future__ import annotations

from collections import Counter
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Form = Literal["NN", "NT", "TN"]
FORMS: tuple[Form, ...] = ("NN", "NT", "TN")
Bias: TypeAlias = Tensor | None  # of a projection or a norm, if it has one


class Kernels:
    """The three products of a layer y = x W^T, as torch computes them.

    x is (sequence, batch, inputs), W (outputs, inputs).
    """

    own_gradients = False
    """Whether these kernels, not autograd, compute gradients of layers that no axis splits."""

    def outputs(self, x: Tensor, weight: Tensor, bias: Bias = None) -> Tensor:
        """y, with the bias added."""
        return F.linear(x, weight, bias)

    def input_gradient(self, grad: Tensor, weight: Tensor) -> Tensor:
        """Gradient of x, from that of y."""
        return grad @ weight

    def weight_gradient(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        """Gradient of W, from that of y; None if it is deferred."""
        return grad.flatten(0, 1).t() @ x.flatten(0, 1)

    def behind_sum(self, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
        """``weight_gradient``, to hide the all-reduce of the gradient of x."""
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
    """Each product in its chosen form; ``calls`` counts products while ``counts`` is set."""

    own_gradients = True

    def __init__(self) -> None:
        self.forms: dict[Product, Form] = {}
        self.calls: Counter[Product] = Counter()
        self.counts = True

    def outputs(self, x: Tensor, weight: Tensor, bias: Bias = None) -> Tensor:
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
        if self.counts:
            self.calls[product] += 1
        form = self.forms.get(product, product.form)
        return None if form == product.form else form


def in_form(form: Form, product: Product, left: Tensor, right: Tensor, bias: Bias = None) -> Tensor:
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
    """Rows as (sequence, batch, ...); no view, since sums over ranks are in place."""
    return torch.ops.aten._unsafe_view(rows, (*x.shape[:2], rows.size(1)))


def _stored(matrix: Tensor, way: str) -> Tensor:
    return matrix.contiguous() if way == "N" else matrix.t().contiguous().t()
