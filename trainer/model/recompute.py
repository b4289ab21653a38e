"""Activation recomputation in a layer's backward pass.

``full`` keeps a layer's input. ``selective`` keeps outputs of matrix products and attention, which
cost most, and repeats norms, rotations and activation functions, which take most memory. The last
product's output is not kept: nothing in the layer reads it.

Eager ``selective`` is written by hand (``computed_again``): torch's calls Python for every
operator, which costs the host several times the layer. Compiled layers use torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import varlen  # noqa: F401 (its operator)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainer.model.offload import View, keeper, restored, storage_of
from trainer.plan.fields import Recompute

CHECKPOINT: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
"""Options of torch's checkpoint: no layer draws random numbers."""
_aten = torch.ops.aten
# Products: position of the weight among the arguments, and its dimension of input features.
# F.linear multiplies by the weight transposed; meshtune's own are split over tensor ranks.
_PRODUCTS = {
    "aten::mm": (1, 0),
    "aten::addmm": (2, 0),
    "meshtune::column_linear": (1, 1),
    "meshtune::row_linear": (1, 1),
}
_ATTENTION = {
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_fused_attention_overrideable.default,
    torch.ops.torch_attn._varlen_attn.default,
}


def recomputed(
    layer: Callable[..., Tensor], kind: Recompute, last_input: int
) -> Callable[..., Tensor]:
    """A layer's computation, with recomputation of this ``kind`` in its backward pass.

    ``last_input``: input features of the layer's last product, on this rank.
    """
    if kind == "none":
        return layer
    if kind == "full":
        return functools.partial(checkpoint, layer, **CHECKPOINT)
    policy = functools.partial(_policy, last_input)
    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return functools.partial(checkpoint, layer, context_fn=contexts, **CHECKPOINT)


def _policy(
    last_input: int, ctx: Any, operator: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """Save or recompute one operator's output; torch asks before it calls the operator."""
    if operator in _ATTENTION:
        return CheckpointPolicy.MUST_SAVE
    found = _PRODUCTS.get(operator.name() if hasattr(operator, "name") else "")
    if found is None:
        return CheckpointPolicy.PREFER_RECOMPUTE
    place, dim = found
    last = args[place].size(dim) == last_input
    return CheckpointPolicy.PREFER_RECOMPUTE if last else CheckpointPolicy.MUST_SAVE


def in_backward() -> bool:
    """Whether this thread is in a backward pass; layers that run inside it are recomputed."""
    return torch._C._current_graph_task_id() != -1


# ---- by hand ----


@contextmanager
def computed_again(repeats: bool, compute: Callable[..., Any], *inputs: Any) -> Iterator[Any]:
    """Context with the values of ``compute``.

    With ``repeats`` no operation inside saves them: backward passes recompute them from the inputs.
    """
    values = compute(*inputs)
    if not repeats or not torch.is_grad_enabled():
        yield values
        return
    again = _Again(compute, inputs, values if isinstance(values, tuple) else (values,))
    with saved_tensors_hooks(again.pack, restored):
        yield values


class _Again:
    """Values to recompute for views of them; they are freed once all views were asked for."""

    def __init__(
        self, compute: Callable[..., Any], inputs: tuple[Any, ...], values: tuple[Tensor, ...]
    ) -> None:
        self.compute, self.keep = compute, keeper()
        kept = {storage_of(x) for x in inputs if isinstance(x, Tensor)}
        self.inputs = [self.keep(x.detach()) if isinstance(x, Tensor) else x for x in inputs]
        self.values = {storage_of(x): place for place, x in enumerate(values)}
        self.values = {memory: at for memory, at in self.values.items() if memory not in kept}
        self.asked = 0
        self.found: tuple[Tensor, ...] = ()

    def pack(self, x: Tensor) -> Any:
        value = self.values.get(storage_of(x))
        if value is None:  # a node that kept its own output would keep itself
            return self.keep(x if x.is_leaf else x.detach())
        self.asked += 1
        return View.of(x, functools.partial(self.value, value))

    def value(self, place: int) -> Tensor:
        if not self.found:
            with torch.no_grad():
                values = self.compute(*map(restored, self.inputs))
            self.found = values if isinstance(values, tuple) else (values,)
        value = self.found[place]
        self.asked -= 1
        if not self.asked:
            self.found = ()
        return value


class _Rotation(torch.autograd.Function):
    """Saves the angles only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, -sin), None, None


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The pairs (x[i], x[i + head/2]) of (sequence, batch, heads, head) turned by the angles."""
    if torch.compiler.is_compiling():
        return _turned(x, cos, sin)
    return _Rotation.apply(x, cos, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class SwiGlu(torch.autograd.Function):
    """silu(gate) * value of (..., gate and value) (Shazeer 2020); saves its input only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate, value = x.chunk(2, dim=-1)
        of_gate = torch.ops.aten.silu_backward(grad * value, gate)
        return torch.cat((of_gate, grad * F.silu(gate)), dim=-1)


class _RmsNorm(torch.autograd.Function):
    """Saves its input only; a GPU's kernels do so themselves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return F.rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = (kept.detach().requires_grad_() for kept in ctx.saved_tensors)
        with torch.enable_grad():  # a CPU's norm is several operators, with gradients of their own
            y = F.rms_norm(x, weight.shape, weight, ctx.eps)
        return *torch.autograd.grad(y, (x, weight), grad), None


def rms_norm(weight: Tensor, eps: float, x: Tensor) -> Tensor:
    """``F.rms_norm`` over the last dimension; saves ``x`` only."""
    if x.device.type != "cpu":
        return F.rms_norm(x, weight.shape, weight, eps)
    return _RmsNorm.apply(x, weight, eps)
