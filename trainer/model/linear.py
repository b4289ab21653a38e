"""Projections and norms of a layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.recompute import rms_norm
from trainer.plan.model import ModelConfig


class SplitProduct(Protocol):
    """Computation of a projection that is split over ranks."""

    def product(self, linear: Linear, x: Tensor) -> Tensor: ...


class Linear(nn.Module):
    """A projection whose rows are several stacked matrices of ``parts`` rows, e.g. query, key and
    value.

    One product instead of three; tensor parallelism splits each of the matrices by itself.
    """

    def __init__(self, in_size: int, parts: tuple[int, ...], bias: bool) -> None:
        super().__init__()
        self.parts = parts
        self.weight = nn.Parameter(torch.empty(sum(parts), in_size))
        self.bias = nn.Parameter(torch.empty(sum(parts))) if bias else None
        self.split: SplitProduct | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.split is not None:
            return self.split.product(self, x)
        return F.linear(x, self.weight, self.bias)


def activated(x: Tensor, gated: bool) -> Tensor:
    """GELU, or SwiGLU (Shazeer 2020) of (..., gate and value)."""
    if not gated:
        return F.gelu(x, approximate="tanh")
    gate, value = x.chunk(2, dim=-1)
    return F.silu(gate) * value


def norm_layer(
    model: ModelConfig, size: int | None = None, eps: float | None = None
) -> nn.LayerNorm | nn.RMSNorm:
    """The model's norm, by default over its hidden size."""
    layer = nn.LayerNorm if model.norm == "layernorm" else nn.RMSNorm
    return layer(size or model.hidden_size, eps=eps or model.norm_eps)


def normalize(layer: nn.Module, repeats: bool) -> Callable[[Tensor], Tensor]:
    """The norm's function; with ``repeats`` it keeps its input alone for the backward pass."""
    if repeats and isinstance(layer, nn.RMSNorm):
        return functools.partial(rms_norm, layer.weight, layer.eps)
    return layer
