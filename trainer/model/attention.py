"""Causal attention, also within documents or a sliding window."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.utils.checkpoint import checkpoint

from trainer.model.linear import Linear, norm_layer, normalize
from trainer.model.recompute import CHECKPOINT, computed_again, rotated
from trainer.plan.model import ModelConfig

Attend = Callable[..., Tensor]
"""Attention: queries, keys and values (sequence, batch, heads, head), and a mask ``Places.seen``
unless attention is simply causal, to the joined heads (sequence, batch, heads * head)."""


def for_each_query(query: Tensor, shared: Tensor) -> Tensor:
    """Keys or values repeated for each query head, for kernels without grouped queries."""
    return shared.repeat_interleave(query.size(2) // shared.size(2), 2)


def attend(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None = None) -> Tensor:
    """Causal attention; (sequence, batch, heads, head) in, heads joined out."""
    if seen is not None and seen.dtype == torch.int32:
        return _attend_documents(query, key, value, seen)
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    grouped = query.size(1) != key.size(1)
    context = F.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, is_causal=seen is None, enable_gqa=grouped
    )
    return context.permute(2, 0, 1, 3).flatten(2)


def _attend_documents(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor) -> Tensor:
    """``attend`` within each document; no score between two documents is computed.

    One call per sample, on views of the batch: joined samples would be copies, which the backward
    pass keeps.
    """
    # Gradients of several samples are joined by a copy.
    parts = (x.unbind(1) if x.size(1) > 1 else (x.squeeze(1),) for x in (query, key, value))
    samples = zip(*parts, bounds, strict=True)
    found = [(_attend_packed if query.is_cuda else _attend_in_turn)(*sample) for sample in samples]
    return torch.stack(found, 1) if len(found) > 1 else found[0][:, None]


def _attend_packed(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor) -> Tensor:
    """A sample's documents by one kernel, which takes empty ones, too."""
    length, grouped = query.size(0), query.size(1) != key.size(1)
    context = varlen_attn(
        query, key, value, bounds, bounds, length, length, window_size=(-1, 0), enable_gqa=grouped
    )
    assert isinstance(context, Tensor)
    return context.flatten(1)


def _attend_in_turn(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor) -> Tensor:
    places = [slice(*pair) for pair in itertools.pairwise(bounds.tolist()) if pair[0] < pair[1]]
    return torch.cat([attend(*(x[own, None] for x in (query, key, value)))[:, 0] for own in places])


def near_mask(window: int, like: Tensor) -> Tensor:
    """Mask of a block of ``near_blocks``, as ``Places.seen``: (window, 2 window)."""
    query = torch.arange(window, device=like.device)[:, None]
    key = torch.arange(2 * window, device=like.device)
    seen = torch.zeros(window, 2 * window, dtype=like.dtype, device=like.device)
    return seen.masked_fill_((key <= query) | (key > query + window), -torch.inf)


def near_blocks(
    query: Tensor, key: Tensor, value: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries after the first ``window`` in blocks of as many, as samples of a batch, each with the
    keys and values of its own block and of the one before; the last block is padded.

    A window reaches no further, so that attention's work grows linearly with the sequence.
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

    None: it sees all before it. Of int32: the bounds of documents, ``Batches.bounds``; a query
    sees its own. In the number format of the queries: torch's kernels would convert another one,
    and each layer would keep the result for its backward pass.
    """
    near: Tensor | None = None
    """``near_mask`` of layers with windows."""


def document_starts(bounds: Tensor, length: int) -> Tensor:
    """Start of each token's document in its sample, (batch, sequence)."""
    places = torch.arange(length, dtype=bounds.dtype, device=bounds.device)
    places = places.expand(bounds.size(0), -1).contiguous()
    return bounds.gather(1, torch.searchsorted(bounds, places, right=True) - 1)


def own_document(starts: Tensor, dtype: torch.dtype) -> Tensor:
    """Mask that lets tokens see those before them in their document; see ``Places.seen``."""
    same = starts[:, :, None] == starts[:, None, :]
    seen = torch.zeros(same.shape, dtype=dtype, device=starts.device)
    return seen.masked_fill_(~same.tril_(), -torch.inf)[:, None]


class Attention(nn.Module):
    """Grouped-query causal self-attention, to the last ``window`` tokens if there is one."""

    recompute = False  # recompute attend, and nothing else of the layer
    repeats = False  # recompute attend's inputs from the projections
    repeats_keys = False  # the device has no kernel for grouped queries

    def __init__(self, model: ModelConfig, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        size, kv_size = model.attention_size, model.kv_heads * model.head_dim
        self.head_dim = model.head_dim
        self.group = model.num_heads // model.kv_heads
        self.attend: Attend = attend
        bias = model.linear_bias or model.qkv_bias
        self.qkv = Linear(model.hidden_size, (size, kv_size, kv_size), bias)
        self.out = Linear(size, (model.hidden_size,), model.linear_bias)
        self.norms_together = model.qk_norm_all_heads
        wide = (size, kv_size) if model.qk_norm_all_heads else (model.head_dim, model.head_dim)
        self.query_norm = norm_layer(model, wide[0]) if model.qk_norm else None
        self.key_norm = norm_layer(model, wide[1]) if model.qk_norm else None

    def forward(self, x: Tensor, places: Places) -> Tensor:
        parts = self._projected(x)
        table, seen, near = places  # a plain tuple, where DeepSpeed's hooks have passed it on
        mask = () if seen is None else (seen,)
        with computed_again(self.repeats, self._inputs, *parts, table) as inputs:
            if self.window is not None:
                attended = [self.attend(*inputs[:3])]
                attended += [self.attend(*inputs[3:], near)] if len(inputs) > 3 else []
            elif self.recompute:
                attended = [checkpoint(self.attend, *inputs, *mask, **CHECKPOINT)]
            else:
                attended = [self.attend(*inputs, *mask)]
        several = self.repeats and len(attended) > 1
        with computed_again(several, joined, parts[0].size(0), *attended) as context:
            return self.out(context)

    def _projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Outputs of products that ``_inputs`` takes."""
        return (self.qkv(x).unflatten(-1, (-1, self.head_dim)),)

    def _inputs(self, *parts: Any) -> tuple[Tensor, ...]:
        """Queries, keys and values of all heads; with a window, of its first block and the rest."""
        heads, table = parts
        kv_heads = heads.size(2) // (self.group + 2)  # of this tensor-parallel rank
        both, value = heads.split((heads.size(2) - kv_heads, kv_heads), dim=2)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = both.split((both.size(2) - kv_heads, kv_heads), dim=2)
            normed = self._normed(self.query_norm, query), self._normed(self.key_norm, key)
            both = torch.cat(normed, dim=2)
        if table is not None:
            both = rotated(both, *table)
        query, key = both.split((both.size(2) - kv_heads, kv_heads), dim=2)
        # A CPU's kernel repeats keys itself, and would keep them.
        if self.group > 1 and (self.repeats_keys or (self.repeats and heads.device.type == "cpu")):
            key, value = for_each_query(query, key), for_each_query(query, value)
        if self.window is None or query.size(0) <= self.window:
            return query, key, value
        first = (x[: self.window] for x in (query, key, value))
        return *first, *near_blocks(query, key, value, self.window)

    def _normed(self, layer: nn.Module, heads: Tensor) -> Tensor:
        norm = normalize(layer, self.repeats)
        return norm(heads.flatten(2)).view_as(heads) if self.norms_together else norm(heads)
