"""Numbers to quantize."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainer.plan.formats import BLOCK

Numbers = Callable[[int, int, torch.dtype, str, int], Tensor]


@pytest.fixture(scope="session")
def numbers() -> Numbers:
    """Makes (count, n) numbers that are "normal", "scaled" differently a block, or "any bits"."""

    def make(count: int, n: int, dtype: torch.dtype, kind: str, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if kind == "any bits":
            integer = torch.int32 if dtype == torch.float32 else torch.int16
            limit = torch.iinfo(integer).max
            bits = torch.randint(-limit - 1, limit + 1, (count, n), generator=generator)
            # A block in two has small exponents only: else nearly all of them would hold a NaN.
            small = (torch.arange(n) // BLOCK + seed) % 2 == 0
            highest = 1 << (30 if dtype == torch.float32 else 14)
            return torch.where(small, bits & ~highest, bits).to(integer).view(dtype)
        x = torch.randn(count, n, generator=generator)
        if kind == "scaled":
            exponents = torch.randint(-150, 127, (count, -(-n // BLOCK)), generator=generator)
            x *= torch.exp2(exponents.float()).repeat_interleave(BLOCK, 1)[:, :n]
        return x.to(dtype)

    return make
