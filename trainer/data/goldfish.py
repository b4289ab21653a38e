"""Tokens that the goldfish loss leaves out (Hans et al. 2024, arXiv 2406.10209).

A model that is never trained on some tokens of a text cannot recite it. The mask depends on the
tokens alone: it is the same in every layout and, if hashed, in every copy of a passage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.plan.sections import Goldfish

IGNORED = -1  # A target that is not in the loss


def without(tokens: Tensor, targets: Tensor, goldfish: Goldfish) -> Tensor:
    """Targets, with ``IGNORED`` where left out; tokens are whole sequences, int64 (sequences,
    tokens)."""
    return targets.masked_fill(torch.from_numpy(left_out(tokens.numpy(), goldfish)), IGNORED)


def left_out(tokens: NDArray[np.int64], goldfish: Goldfish) -> NDArray[np.bool_]:
    """Mask of the shape of ``tokens``: true where the token that follows is left out.

    Static: every k-th token. Hashed: chosen by a hash of the h tokens before it; a token with
    fewer before it in its sequence stays.
    """
    k, h = goldfish.k, goldfish.h
    result = np.zeros(tokens.shape, dtype=np.bool_)
    if goldfish.mask == "static":
        result[:, k - 1 :: k] = True
    elif h <= tokens.shape[1]:
        result[:, h - 1 :] = _hashes(tokens.astype(np.uint64), h) % np.uint64(k) == 0
    return result


def _hashes(tokens: NDArray[np.uint64], h: int) -> NDArray[np.uint64]:
    """A number for every window of h tokens, which depends on their order."""
    windows = tokens.shape[1] - h + 1
    found = np.zeros((tokens.shape[0], windows), dtype=np.uint64)
    for place in range(h):
        found = mix(found ^ tokens[:, place : place + windows])
    return found


def mix(value: Any) -> Any:
    """SplitMix64's finalizer (Steele et al. 2014) of an integer or an array of uint64."""
    value = (value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return value ^ (value >> 31)
