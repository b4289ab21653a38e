"""Data for tests that look at what a step does, not at what it learns."""

from __future__ import annotations

from typing import Any

import torch


class ConstantTokens:
    """Samples of one token."""

    def samples(
        self, first: int, count: int, *, seq_length: int, **_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.ones(count, seq_length, dtype=torch.int64)
        return tokens, tokens
