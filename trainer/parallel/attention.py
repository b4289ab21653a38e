"""Attention to one block of keys, with the log-sum-exp that joins blocks.

Torch's public function does not return it, so its kernels are called by name. Their backward passes
compute probabilities from the log-sum-exp they are given: with that of all blocks, a block's
gradients are its part of the whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_ops = torch.ops.aten
_FLASH_WIDTH = 8  # on GPUs, channels of a head are filled up to a multiple of this


class Attended(NamedTuple):
    """Attention's result over the keys seen so far."""

    output: Tensor  # (batch, heads, queries, head)
    log_sum: Tensor  # log-sum of the scores' exponentials, float32 (batch, heads, queries)


def attend_block(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Attended:
    """Attention to these keys alone.

    Queries are (batch, heads, queries, head), keys and values (batch, key heads, keys, head).
    ``causal``: queries and keys are at the same positions.
    """
    scale, width = query.size(-1) ** -0.5, value.size(-1)
    key, value = (_for_each_head(x, query) for x in (key, value))
    query, key, value = _filled(query, key, value)
    if query.device.type == "cpu":
        output, log_sum = _ops._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, scale=scale
        )
    elif query.dtype == torch.float32:
        output, log_sum, *_ = _ops._scaled_dot_product_efficient_attention(
            query, key, value, None, True, 0.0, causal, scale=scale
        )
        log_sum = log_sum[..., : query.size(2)]
    else:
        output, log_sum, *_ = _ops._scaled_dot_product_flash_attention(
            query, key, value, 0.0, causal, scale=scale
        )
    return Attended(output[..., :width], log_sum)


def block_gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attended: Attended, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values from one block; ``attended`` is to all blocks."""
    key_heads = key.size(1)
    key, value = (_for_each_head(x, query) for x in (key, value))
    scale, widths = query.size(-1) ** -0.5, (query.size(-1), key.size(-1), value.size(-1))
    tensors = _filled(grad, query, key, value, attended.output)
    log_sum = attended.log_sum
    if query.device.type == "cpu":
        found = _ops._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, log_sum, 0.0, causal, scale=scale
        )
    elif query.dtype == torch.float32:
        # The kernel reads rows of log-sums that are padded to a multiple of 32.
        log_sum = F.pad(log_sum, (0, -query.size(2) % 32)).contiguous()
        seed = torch.zeros((), dtype=torch.int64)  # of dropout, which is off
        *inputs, output = tensors
        rest: Any = (None, output, log_sum, seed, seed, 0.0, [True, True, True, False], causal)
        found = _ops._scaled_dot_product_efficient_attention_backward(*inputs, *rest, scale=scale)
    else:
        seed = torch.zeros(2, dtype=torch.uint64, device=log_sum.device)
        lengths = (query.size(2), key.size(2))
        rest = (log_sum.contiguous(), None, None, *lengths, 0.0, causal, seed, seed)
        found = _ops._scaled_dot_product_flash_attention_backward(*tensors, *rest, scale=scale)
    of_query, of_key, of_value = (x[..., :n] for x, n in zip(found[:3], widths, strict=True))
    return of_query, _over_heads(of_key, key_heads), _over_heads(of_value, key_heads)


def _filled(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors padded with zero channels to one size, a multiple of what their kernel needs."""
    plain = tensors[0].device.type == "cpu" or tensors[0].dtype == torch.float32
    size = max(x.size(-1) for x in tensors)
    size += 0 if plain else -size % _FLASH_WIDTH
    return tuple(F.pad(x, (0, size - x.size(-1))) if x.size(-1) < size else x for x in tensors)


def _for_each_head(x: Tensor, query: Tensor) -> Tensor:
    shared = query.size(1) // x.size(1)
    return x.repeat_interleave(shared, 1) if shared > 1 else x


def _over_heads(grad: Tensor, key_heads: int) -> Tensor:
    """Sum over the query heads that share a key."""
    return grad if grad.size(1) == key_heads else grad.unflatten(1, (key_heads, -1)).sum(2)
