"""Greedy decoding with a cache of keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.attention import Attend, attend
from trainer.model.transformer import Block, Stage


class CachedAttention:
    """``attention.attend`` of new tokens to all tokens so far."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.keys is None or self.values is None:  # the prompt
            self.keys, self.values = key, value
            return attend(query, key, value)
        self.keys = torch.cat((self.keys, key))
        self.values = torch.cat((self.values, value))
        heads = (x.permute(1, 2, 0, 3) for x in (query, self.keys, self.values))
        grouped = query.size(2) != key.size(2)
        context = F.scaled_dot_product_attention(*heads, enable_gqa=grouped)
        return context.permute(2, 0, 1, 3).flatten(2)


@torch.no_grad()
def greedy(stage: Stage, prompt: Tensor, count: int) -> Tensor:
    """The most likely next tokens, one after another.

    Args:
        stage: a whole model.
        prompt: (sequences, tokens).
        count: tokens to write; with the prompt at most ``seq_length``.

    Returns:
        (sequences, count).
    """
    attentions = [block.attention for block in stage.blocks.values() if isinstance(block, Block)]
    before: list[Attend] = [attention.attend for attention in attentions]
    for attention in attentions:
        attention.attend = CachedAttention()
    written: list[Tensor] = []
    tokens, begin = prompt, 0
    try:
        for _ in range(count):
            _stand_at(stage, (range(begin, begin + tokens.size(1)),))
            tokens, begin = stage(tokens)[-1].argmax(-1)[:, None], begin + tokens.size(1)
            written.append(tokens)
    finally:
        for attention, own in zip(attentions, before, strict=True):
            attention.attend = own
        _stand_at(stage, ())
    return torch.cat(written, 1)


def _stand_at(stage: Stage, chunks: tuple[range, ...]) -> None:
    """Set the positions of the stage's next input; none: all."""
    stage.chunks, stage.table = chunks, None
    if stage.positions is not None:
        stage.positions.chunks = chunks
