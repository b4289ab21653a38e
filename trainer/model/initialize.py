"""Initial weights, the same for every parallel layout.

Each value depends only on the seed, the parameter's name and its place in the whole parameter. A
rank draws the rows it holds, a few at a time.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn

from trainer.model.slices import TensorShard, shard_of
from trainer.plan.model import ModelConfig

STD = 0.02
DRAW_ELEMENTS = 1 << 20  # numbers drawn at once


def initialize(module: nn.Module, prefix: str, model: ModelConfig, seed: int) -> None:
    """Initialize a module's parameters in place, as GPT-2 (Radford et al. 2019).

    Normal with deviation 0.02, divided by sqrt(2 * layers) where a projection adds to the residual
    stream; biases 0, norms 1. The module is whole or split, on its real device; ``prefix`` is its
    place in the whole model, e.g. ``blocks.3.``.
    """
    for path, child in module.named_modules(prefix=prefix.rstrip(".")):
        for name, parameter in child.named_parameters(recurse=False):
            full_name = f"{path}.{name}"
            if full_name == "head.weight" and model.tied_embeddings:
                full_name = "embedding.weight"  # the last pipeline stage's copy of it
            value = parameter.detach()
            if name == "bias":
                value.zero_()
            elif value.dim() == 1:
                value.fill_(1.0)
            else:
                residual = full_name.endswith((".out.weight", ".down.weight"))
                std = STD / math.sqrt(2 * model.num_layers) if residual else STD
                _draw(value, f"{seed}/{full_name}", std, shard_of(child, name))


def _draw(out: Tensor, key: str, std: float, shard: TensorShard) -> None:
    num_rows, columns = shard.whole
    first_column = shard.split.columns.rank * out.size(1)
    kept = slice(first_column, first_column + out.size(1))
    per_draw = min(num_rows, max(1, DRAW_ELEMENTS // columns))
    filled = 0
    generator = torch.Generator(out.device)
    for begin, end in shard.row_ranges():
        for number in range(begin // per_draw, -(-end // per_draw)):
            digest = hashlib.blake2b(f"{key}/{number}".encode(), digest_size=7).digest()
            generator.manual_seed(int.from_bytes(digest, "little"))
            first = number * per_draw
            values = torch.empty(per_draw, columns, device=out.device)
            values.normal_(0.0, std, generator=generator)
            low, high = max(begin, first), min(end, first + per_draw)
            rows = values[low - first : high - first, kept]
            out[filled : filled + high - low].copy_(rows)
            filled += high - low
