"""Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).

Keys and values of all heads are projected from one low-rank vector per token, and so are queries if
they have a rank. Only some channels per head have a position; all heads share those of the keys.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.attention import Attention, attend
from trainer.model.linear import Linear, norm_layer, normalize
from trainer.model.recompute import computed_again, rotated
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Latent

NORM_EPS = 1e-6  # of latents' norms, whatever the model's norm_eps, as in DeepSeek's models


def attend_padded(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None = None) -> Tensor:
    """``attend`` to values of fewer channels than keys, for kernels that take equal sizes only."""
    size, missing = value.size(-1), key.size(-1) - value.size(-1)
    context = attend(query, key, F.pad(value, (0, missing)), seen)
    return context.unflatten(-1, (-1, size + missing))[..., :size].flatten(2)


class LatentAttention(Attention):
    """Causal latent attention; tp splits the up projections and the output projection by heads.

    Down projections are whole on each rank. All ranks read ``shared_key``.
    """

    def __init__(self, model: ModelConfig, latent: Latent) -> None:
        nn.Module.__init__(self)
        self.window = None
        self.sizes, yarn = latent, 0.1 * model.rope_mscale * math.log(model.rope_factor)
        self.scale = (yarn + 1) ** 2 if model.rope_type == "yarn" else 1.0
        self.attend = attend_padded
        bias, hidden, heads = model.linear_bias, model.hidden_size, model.num_heads
        rank, kept = latent.query_rank, latent.key_value_rank
        self.q_down = Linear(hidden, (rank,), bias) if rank else None
        self.query_norm = norm_layer(model, rank, NORM_EPS) if rank else None
        self.q_up = Linear(rank or hidden, (heads * (latent.key_size + latent.rotary_size),), bias)
        self.kv_down = Linear(hidden, (kept + latent.rotary_size,), bias)
        self.key_value_norm = norm_layer(model, kept, NORM_EPS)
        self.kv_up = Linear(kept, (heads * (latent.key_size + latent.value_size),), bias)
        self.shared_key = nn.Identity()
        self.out = Linear(heads * latent.value_size, (hidden,), bias)

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.q_down is not None and self.query_norm is not None:
            query = self._up(self.query_norm, self.q_up, self.q_down(x))
        else:
            query = self.q_up(x)
        sizes = (self.sizes.key_value_rank, self.sizes.rotary_size)
        latent, shared = self.kv_down(x).split(sizes, -1)
        return query, self._up(self.key_value_norm, self.kv_up, latent), self.shared_key(shared)

    def _up(self, norm: nn.Module, up: Linear, latent: Tensor) -> Tensor:
        with computed_again(self.repeats, normalize(norm, self.repeats), latent) as normed:
            return up(normed)

    def _inputs(self, *parts: Any) -> tuple[Tensor, ...]:
        """Queries, keys and values of this tensor-parallel rank's heads."""
        query, key_value, shared, table = parts
        sizes = self.sizes
        query = query.unflatten(-1, (-1, sizes.key_size + sizes.rotary_size))
        key_value = key_value.unflatten(-1, (-1, sizes.key_size + sizes.value_size))
        query, turned = query.split((sizes.key_size, sizes.rotary_size), -1)
        key, value = key_value.split((sizes.key_size, sizes.value_size), -1)
        turned, one = (rotated(_halves(x), *table) for x in (turned, shared.unsqueeze(2)))
        query = torch.cat((query, turned), -1)
        if self.scale != 1:
            query = query * self.scale
        return query, torch.cat((key, one.expand(-1, -1, key.size(2), -1)), -1), value


def _halves(x: Tensor) -> Tensor:
    """Channels that are rotated in pairs of neighbours, in the order that ``rotated`` takes."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
