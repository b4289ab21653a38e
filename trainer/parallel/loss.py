"""Cross entropy over a vocabulary that is split over tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.parallel.collectives import Group

CHUNK_ELEMENTS = 1 << 24
"""Logits that are in float32 at once: 64 MiB of them."""


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits and one figure per token; the probabilities are computed again.

    Both passes go over the logits in chunks of rows: they never exist in float32 as a whole.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group | None) -> Tensor:
        size = logits.size(-1)
        counts = (targets >= 0).float()
        peak = logits.amax(-1).float()
        if group is not None:
            group.all_reduce(peak, "tensor", dist.ReduceOp.MAX)
            targets = targets - group.rank * size
        inside = (targets >= 0) & (targets < size)
        local = targets.masked_fill(~inside, 0)[:, None]
        sums = torch.empty(2, logits.size(0), device=logits.device)
        for rows in _chunks(logits):
            torch.sum((logits[rows].float() - peak[rows, None]).exp_(), -1, out=sums[0, rows])
        sums[1] = logits.gather(-1, local).squeeze(-1).masked_fill_(~inside, 0.0)
        if group is not None:
            group.all_reduce(sums, "tensor")
        log_total = sums[0].log_().add_(peak)
        ctx.save_for_backward(logits, log_total, local, inside, counts)
        return ((log_total - sums[1]) * counts).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, log_total, local, inside, counts = ctx.saved_tensors
        share = (grad / logits.size(0) * counts)[:, None]
        result = torch.empty_like(logits)
        for rows in _chunks(logits):
            part = (logits[rows].float() - log_total[rows, None]).exp_()
            part.scatter_add_(-1, local[rows], -inside[rows].to(part.dtype)[:, None])
            result[rows] = part.mul_(share[rows])
        return result, None, None


def _chunks(logits: Tensor) -> Iterator[slice]:
    """Consecutive rows, as many at once as ``CHUNK_ELEMENTS`` has room for."""
    step = max(1, CHUNK_ELEMENTS // logits.size(-1))
    for begin in range(0, logits.size(0), step):
        yield slice(begin, begin + step)


def cross_entropy(logits: Tensor, targets: Tensor, group: Group | None) -> Tensor:
    """Mean loss of next-token prediction, in float32; the whole logits are never in one place.

    Two small all-reduces over the group (Shoeybi et al. 2019, section 3).

    Logits are (sequence, batch, vocabulary / ranks of the group), targets (batch, sequence).
    Negative targets are ignored: they add nothing to the sum, which is divided by the number of
    all. Without a group the vocabulary is whole.
    """
    return _CrossEntropy.apply(logits.flatten(0, 1), targets.t().reshape(-1), group)
