"""Activation recomputation in a layer's backward pass.

``full`` keeps a layer's input. ``selective`` keeps outputs of matrix products and attention, which
cost most, and repeats norms, rotations and activation functions, which take most memory. The last
product's output is not kept: nothing in the layer reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainer.plan.fields import Recompute

_aten = torch.ops.aten
_PRODUCTS = {  # and where their weight is
    _aten.mm.default: 1,
    _aten.addmm.default: 2,
    _aten._scaled_mm.default: 1,
}
_ATTENTION = {
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_fused_attention_overrideable.default,
}
_SPLIT_PRODUCTS = {"meshtune::column_linear": 1, "meshtune::row_linear": 1}  # over tensor ranks


def recomputed(
    layer: Callable[..., Tensor], kind: Recompute, last_input: int
) -> Callable[..., Tensor]:
    """A layer's computation, of which ``kind`` says what its backward pass does again.

    ``last_input``: features that the layer's last product takes in, on this rank.
    """
    if kind == "none":
        return layer
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if kind == "selective":
        policy = functools.partial(_policy, last_input)
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, policy)
    return functools.partial(checkpoint, layer, **options)


def _policy(
    last_input: int, ctx: Any, operator: Any, *args: Any, **kwargs: Any
) -> CheckpointPolicy:
    """Save or recompute one operator's output; torch asks before it calls the operator."""
    if operator in _ATTENTION:
        return CheckpointPolicy.MUST_SAVE
    place = _PRODUCTS.get(operator)
    if place is not None:
        # F.linear multiplies by the weight transposed.
        last = args[place].size(0) == last_input
        return CheckpointPolicy.PREFER_RECOMPUTE if last else CheckpointPolicy.MUST_SAVE
    place = _SPLIT_PRODUCTS.get(operator.name() if hasattr(operator, "name") else "")
    if place is not None:
        last = args[place].size(1) == last_input
        return CheckpointPolicy.PREFER_RECOMPUTE if last else CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
