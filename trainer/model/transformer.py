"""A decoder-only transformer, cut into pipeline stages; each file of parallelism builds on it.

Activations are (sequence, batch, hidden): sequence parallelism then gathers and scatters along
the first dimension, which needs no copy (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.model.attention import Attention, Places, document_starts, near_mask, own_document
from trainer.model.experts import MixtureMlp, kept_routes
from trainer.model.latent import LatentAttention
from trainer.model.linear import Linear, activated, norm_layer, normalize
from trainer.model.offload import Offload
from trainer.model.recompute import CHECKPOINT, SwiGlu, computed_again, recomputed
from trainer.plan.fields import Recompute
from trainer.plan.model import ModelConfig


@dataclass(frozen=True)
class LayerOptions:
    """How a stage's layers are computed; by default as a device computes a model of its own."""

    # in backward passes; attention alone where products or attention communicate
    recompute: Recompute | Literal["attention"] = "none"
    recompute_every: int = 1  # so many layers; the others keep everything
    compiled: bool = False  # one graph per pass
    resets_attention: bool = True  # at documents' boundaries
    resets_positions: bool = True
    masks_documents: bool = False  # the device has no kernel for packed documents
    repeats_keys: bool = False  # it has none for grouped queries
    chunks: Sequence[range] = ()  # of each sequence, if not all of it
    chunked_loss: bool = False  # the head takes targets, see trainer.parallel.loss.chunk_loss
    offload: Offload | None = None  # where activations wait for the backward pass


def chosen(whole: Tensor, chunks: Sequence[range], dim: int = 0) -> Tensor:
    """Positions ``chunks`` of whole sequences; all positions if there are no chunks."""
    if not chunks:
        return whole
    return torch.cat([whole.narrow(dim, chunk.start, len(chunk)) for chunk in chunks], dim)


def rotary_table(
    model: ModelConfig, like: Tensor, chunks: Sequence[range] = ()
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions (Su et al. 2021), each (sequence, 1, 1, head/2).

    Of the positions of ``chunks``, default all; device and format are those of ``like``.
    """
    size, wide = model.rotary_size, torch.promote_types(like.dtype, torch.float32)
    half = torch.arange(0, size, 2, device=like.device, dtype=wide)
    frequency = model.rope_theta ** (-half / size)
    if model.rope_factor > 1:
        frequency = _stretched(frequency, model)
    position = torch.arange(model.seq_length, device=like.device, dtype=wide)
    angle = torch.outer(chosen(position, chunks), frequency)[:, None, None, :]
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def _stretched(frequency: Tensor, model: ModelConfig) -> Tensor:
    """Frequencies of Llama 3.1 or YaRN: low ones divided by a factor, high ones kept."""
    low, high = model.rope_low_freq_factor, model.rope_high_freq_factor
    if model.rope_type == "yarn":  # Peng et al. 2023, arXiv 2309.00071; linear in the channel
        length, size = model.rope_original_length / (2 * math.pi), model.rotary_size
        first, last = (
            size * math.log(length / turns) / (2 * math.log(model.rope_theta))
            for turns in (high, low)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), size - 1)
        channel = torch.arange(size // 2, device=frequency.device, dtype=frequency.dtype)
        kept = 1 - ((channel - first) / max(last - first, 1e-3)).clamp(0, 1)
    else:
        turns = frequency * (model.rope_original_length / (2 * math.pi))
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (kept + (1 - kept) / model.rope_factor)


class Mlp(nn.Module):
    """Two projections with GELU between, or SwiGLU (Shazeer 2020)."""

    def __init__(self, model: ModelConfig, size: int) -> None:
        super().__init__()
        self.gated = model.activation == "swiglu"
        self.repeats = False  # the activation function, from its input
        parts = (size,) * (2 if self.gated else 1)
        self.up = Linear(model.hidden_size, parts, model.linear_bias)
        self.down = Linear(size, (model.hidden_size,), model.linear_bias)

    def forward(self, x: Tensor) -> Tensor:
        with computed_again(self.repeats, self._activated, self.up(x)) as active:
            return self.down(active)

    def _activated(self, x: Tensor) -> Tensor:
        return SwiGlu.apply(x) if self.gated and self.repeats else activated(x, self.gated)


def feed_forward(model: ModelConfig, layer: int) -> nn.Module:
    """The part of a layer behind attention: dense, or a mixture of experts."""
    mixture = model.mixture
    if mixture is None or layer < mixture.dense_layers:
        return Mlp(model, model.ffn_size)
    shared = Mlp(model, mixture.shared_ffn_size) if mixture.shared_ffn_size else None
    return MixtureMlp(model, mixture, shared)


class Block(nn.Module):
    """One pre-norm transformer layer, of the given number; ``begins``: the first of its stage.

    With experts attention alone is recomputed in place of selective, and graphs are without
    experts, whose numbers of tokens differ from pass to pass.
    """

    def __init__(
        self, model: ModelConfig, options: LayerOptions, layer: int = 0, begins: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = norm_layer(model)
        window = model.window(layer)
        hides = window is not None and window < model.seq_length
        latent, near = model.latent, window if hides else None
        self.attention = LatentAttention(model, latent) if latent else Attention(model, near)
        self.mlp_norm = norm_layer(model)
        self.mlp = feed_forward(model, layer)
        self.attention.repeats_keys = options.repeats_keys
        self.compiled = options.compiled
        self.keeping: Callable[[Any], AbstractContextManager[Any]] = nullcontext
        if options.offload is not None:
            self.keeping = functools.partial(options.offload.keeping, begins)
        recompute = options.recompute if layer % options.recompute_every == 0 else "none"
        self.recompute: Recompute = "none"
        if recompute == "attention" or (recompute == "selective" and model.num_experts):
            self.attention.recompute = True
        else:
            self.recompute = recompute
        # Compiled layers use torch's recomputation, too slow in eager mode; see ``recompute``.
        self.repeats = self.mlp.repeats = self.recompute == "selective" and not self.compiled
        # Two blocks of a window see copies of keys, which are recomputed in place of saved.
        windowed = self.recompute == "none" and self.attention.window is not None
        self.attention.repeats = self.repeats or (windowed and not self.compiled)

    def forward(self, x: Tensor, places: Places) -> Tensor:
        whole = self.compiled and not isinstance(self.mlp, MixtureMlp)
        with self.keeping((self, places)):
            return (compiled(run_layer) if whole else run_layer)(self, x, places)

    def compute(self, x: Tensor, places: Places) -> Tensor:
        repeats = self.repeats
        if self.compiled and isinstance(self.mlp, MixtureMlp):
            x, normed = compiled(run_attention)(self, x, places)
            return x + self.mlp(normed)
        with computed_again(repeats, normalize(self.attention_norm, repeats), x) as normed:
            x = x + self.attention(normed, places)
        with computed_again(repeats, normalize(self.mlp_norm, repeats), x) as normed:
            return x + self.mlp(normed)


def run_layer(block: Block, x: Tensor, places: Places) -> Tensor:
    if block.recompute == "none" or block.repeats:
        return block.compute(x, places)
    if isinstance(block.mlp, MixtureMlp):
        return checkpoint(block.compute, x, places, context_fn=kept_routes, **CHECKPOINT)
    width = block.mlp.down.weight.size(1)  # of this tensor-parallel rank
    return recomputed(block.compute, block.recompute, last_input=width)(x, places)


def run_attention(block: Block, x: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """A layer up to its feed-forward part, and the input of that."""
    x = x + block.attention(block.attention_norm(x), places)
    return x, block.mlp_norm(x)


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, once for all layers.

    A graph break is an error, since it would silently slow the layer down. Each kind of layer has a
    graph of its own, with and without gradients.
    """
    return torch.compile(function, fullgraph=True, dynamic=False, recompile_limit=64)


class Embedding(nn.Module):
    """Vectors of token numbers: (sequence, batch) to (sequence, batch, hidden)."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(model.vocab_size, model.hidden_size))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class Positions(nn.Module):
    """Adds a learned vector per position."""

    def __init__(self, model: ModelConfig, chunks: Sequence[range] = ()) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(model.seq_length, model.hidden_size))
        self.chunks = chunks

    def rows(self, positions: Tensor | None) -> Tensor:
        """Embeddings of this rank's positions, (sequence, 1, hidden).

        With ``positions`` of each token, (sequence, batch): (sequence, batch, hidden).
        """
        if positions is not None:
            return F.embedding(positions, self.weight)
        return chosen(self.weight, self.chunks)[:, None]

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        return x + self.rows(positions)


class Head(nn.Module):
    """Logits; the weight is its own, or the embedding's when that is in the same stage."""

    def __init__(self, model: ModelConfig, own_weight: bool) -> None:
        super().__init__()
        sizes = (model.vocab_size, model.hidden_size)
        self.weight = nn.Parameter(torch.empty(sizes)) if own_weight else None

    def forward(self, x: Tensor, tied: Tensor | None = None) -> Tensor:
        return F.linear(x, self.weight if tied is None else tied)


class Stage(nn.Module):
    """Consecutive layers of the model, with the embedding if first and the head if last.

    Parameters have the whole model's names. ``layers`` defaults to an equal share.
    """

    def __init__(
        self,
        model: ModelConfig,
        index: int = 0,
        num_stages: int = 1,
        options: LayerOptions | None = None,
        layers: range | None = None,
    ) -> None:
        super().__init__()
        self.model, self.options = model, (options := options or LayerOptions())
        self.is_first = index == 0
        self.is_last = index == num_stages - 1
        self.tied = model.tied_embeddings and self.is_last
        self.table: tuple[Tensor, Tensor] | None = None
        self.near: Tensor | None = None
        self.window: int | None = None  # of the layers that have one
        self.chunks = options.chunks
        self.embedding = Embedding(model) if self.is_first else None
        learned = self.is_first and model.positions == "learned"
        self.positions = Positions(model, self.chunks) if learned else None
        self.blocks = nn.ModuleDict()
        share = model.num_layers // num_stages
        for layer in layers or range(index * share, (index + 1) * share):
            block = self.blocks[str(layer)] = Block(model, options, layer, not self.blocks)
            self.window = self.window or block.attention.window
        self.norm = norm_layer(model) if self.is_last else None
        own_weight = not (self.tied and self.is_first)
        self.head = Head(model, own_weight) if self.is_last else None

    def forward(
        self, x: Tensor, bounds: Tensor | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """Tokens (batch, sequence) or hidden states in; hidden states, logits or the loss out.

        ``bounds``: those of documents, if they are separate (``Batches.bounds``). ``targets``,
        (batch, sequence), matter to a ``chunked_loss`` only.
        """
        options, positions, starts = self.options, None, None
        if bounds is not None and (options.resets_positions or options.masks_documents):
            starts = document_starts(bounds, self.model.seq_length)
        if starts is not None and options.resets_positions:
            positions = (torch.arange(starts.size(1), device=starts.device) - starts).t()
        if self.embedding is not None:
            x = self.embedding(x.t())
        if self.positions is not None:
            x = self.positions(x, positions)
        if self.model.positions == "rotary" and self.table is None:
            self.table = rotary_table(self.model, x, self.chunks)
        table = self.table
        if table is not None and positions is not None:
            table = (table[0][positions, 0], table[1][positions, 0])
        seen = bounds if options.resets_attention else None
        if seen is not None and options.compiled:
            # One graph for all numbers of documents.
            torch._dynamo.maybe_mark_dynamic(seen, 1)
        if seen is not None and starts is not None and options.masks_documents:
            seen = own_document(starts, x.dtype)
        if self.window is not None and self.near is None:
            self.near = near_mask(self.window, x)
        places = Places(table, seen, self.near)
        for block in self.blocks.values():
            x = block(x, places)
        if self.norm is not None and self.head is not None:
            tied = self.embedding.weight if self.tied and self.embedding is not None else None
            wanted = (targets,) if options.chunked_loss else ()
            x = self.head(self.norm(x), tied, *wanted)
        return x
