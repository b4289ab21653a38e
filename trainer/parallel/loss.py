"""Cross entropy over a vocabulary that is split over tensor-parallel ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.parallel.collectives import Group


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits and one figure per token; the probabilities are computed again."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group | None) -> Tensor:
        rows = logits.size(-1)
        counts = (targets >= 0).float()
        values = logits.float()
        peak = values.amax(-1)
        if group is not None:
            group.all_reduce(peak, "tensor", dist.ReduceOp.MAX)
            targets = targets - group.rank * rows
        inside = (targets >= 0) & (targets < rows)
        local = targets.masked_fill(~inside, 0)[:, None]
        sums = torch.stack(
            (
                (values - peak[:, None]).exp_().sum(-1),
                values.gather(-1, local).squeeze(-1).masked_fill_(~inside, 0.0),
            )
        )
        if group is not None:
            group.all_reduce(sums, "tensor")
        log_total = sums[0].log_().add_(peak)
        ctx.save_for_backward(logits, log_total, local, inside, counts)
        return ((log_total - sums[1]) * counts).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, log_total, local, inside, counts = ctx.saved_tensors
        result = (logits.float() - log_total[:, None]).exp_()
        result.scatter_add_(-1, local, -inside.to(result.dtype)[:, None])
        return result.mul_(grad / result.size(0) * counts[:, None]).to(logits.dtype), None, None


def cross_entropy(logits: Tensor, targets: Tensor, group: Group | None) -> Tensor:
    """Mean loss of next-token prediction, in float32; the whole logits are never in one place.

    Two small all-reduces over the group (Shoeybi et al. 2019, section 3).

    Args:
        logits: (sequence, batch, vocabulary / ranks of the group).
        targets: token numbers, (batch, sequence). Negative ones are ignored: they add nothing to
            the sum, which is divided by the number of all.
        group: over which the vocabulary is split; None: it is whole.
    """
    return _CrossEntropy.apply(logits.flatten(0, 1), targets.t().reshape(-1), group)
