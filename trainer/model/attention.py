"""Causal attention, which tokens of other documents or far before do not enter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[..., Tensor]
"""Attention: queries, keys and values (sequence, batch, heads, head), and a mask ``Places.seen``
unless attention is simply causal, to the joined heads (sequence, batch, heads * head)."""


def for_each_query(query: Tensor, shared: Tensor) -> Tensor:
    """Keys or values repeated, for kernels that have no grouped queries."""
    return shared.repeat_interleave(query.size(2) // shared.size(2), 2)


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None = None) -> Tensor:
    """Causal attention; (sequence, batch, heads, head) in, heads joined out."""
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    grouped = query.size(1) != key.size(1)
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, is_causal=seen is None, enable_gqa=grouped
    )
    return context.permute(2, 0, 1, 3).flatten(2)


def near_mask(window: int, like: Tensor) -> Tensor:
    """Mask of a block of ``near_blocks``, as ``Places.seen``: (window, 2 window)."""
    query = torch.arange(window, device=like.device)[:, None]
    key = torch.arange(2 * window, device=like.device)
    seen = torch.zeros(window, 2 * window, dtype=like.dtype, device=like.device)
    return seen.masked_fill_((key <= query) | (key > query + window), -torch.inf)


def near_blocks(
    query: Tensor, key: Tensor, value: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries behind the first ``window`` in blocks of as many, each with the keys and values of
    its own tokens and of the block before, as samples of a batch; the last one is filled up.

    No query in them sees more, and attention's work grows as the sequence, not as its square.
    """
    count = -(-query.size(0) // window) - 1
    short = (count + 1) * window - query.size(0)
    if short:
        query, key, value = (F.pad(x, (0, 0) * 3 + (0, short)) for x in (query, key, value))
    near = (x.unfold(0, 2 * window, window).permute(4, 0, 1, 2, 3) for x in (key, value))
    own = query[window:].unflatten(0, (count, window)).transpose(0, 1)
    query, key, value = (x.flatten(1, 2) for x in (own, *near))
    return query, key, value


def joined(length: int, first: Tensor, *rest: Tensor) -> Tensor:
    """Attention's output for the first block and for those of ``near_blocks``, end to end."""
    if not rest:
        return first
    (blocks,) = (x.unflatten(1, (-1, first.size(1))).transpose(0, 1).flatten(0, 1) for x in rest)
    return torch.cat((first, blocks))[:length]


class Places(NamedTuple):
    """Positions of tokens, and which keys each may see."""

    table: tuple[Tensor, Tensor] | None
    """Rotary positions, see ``rotary_table``; (sequence, batch or 1, 1, head/2) each."""
    seen: Tensor | None
    """Added to scores: 0 where a query sees a key, else -inf; (batch, 1, sequence, sequence).

    None: it sees all before it. In the number format of the queries: torch's kernels turn another
    one into it, and each layer would keep the result for its backward pass.
    """
    near: Tensor | None = None
    """``near_mask`` of layers with windows."""


def own_document(starts: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask that lets tokens see those before them in their document; see ``Places.seen``.

    ``starts``: where each token's document begins in its sample, (batch, sequence).
    """
    same = starts[:, :, None] == starts[:, None, :]
    seen = torch.zeros(same.shape, dtype=dtype, device=starts.device)
    return seen.masked_fill_(~same.tril_(), -torch.inf)[:, None]
