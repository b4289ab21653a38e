"""Cross entropy over a vocabulary that is split over tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.model.transformer import Head
from trainer.parallel.collectives import Group
from trainer.parallel.products import gather_sequence, scatter_sum

CHUNK_ELEMENTS = 1 << 24  # logits that are in float32 at once: 64 MiB of them


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits and one number per token; the backward pass recomputes probabilities.

    Both passes go over the logits in chunks of rows: they never exist in float32 as a whole.
    Gradients overwrite the logits, which nothing else reads by then.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: Group | None) -> Tensor:
        counts = (targets >= 0).float()
        if group is not None:
            targets = targets - group.rank * logits.size(-1)
        sums = torch.empty(2, logits.size(0), device=logits.device)
        for rows in _chunks(*logits.shape):
            torch.logsumexp(logits[rows].float(), -1, out=sums[0, rows])
        sums[1] = _of_targets(logits, targets)
        log_total, of_target = _joined(sums, group)
        ctx.save_for_backward(logits, log_total, targets, counts)
        return ((log_total - of_target) * counts).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, log_total, targets, counts = ctx.saved_tensors
        share = grad / logits.size(0) * counts
        for rows in _chunks(*logits.shape):
            part = logits[rows].float()  # in float32 the logits themselves
            _to_gradients(part, log_total[rows], targets[rows], share[rows])
            if part.dtype != logits.dtype:
                logits[rows] = part
        return logits, None, None


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The output layer with its loss: logits of few words exist at a time, in either pass.

    Each chunk of words completes its rows of the weight gradient; each chunk of tokens would add to
    a whole gradient in float32. The price is a third product: the backward pass repeats the logits.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, group: Group | None, sequence: bool
    ) -> Tensor:
        ctx.group, ctx.sequence = group, sequence and group is not None
        whole = (gather_sequence(x, ctx.group)[0] if ctx.sequence else x).flatten(0, 1)
        wide = torch.promote_types(x.dtype, torch.float32)
        log_total, of_target = sums = whole.new_zeros((2, whole.size(0)), dtype=wide)
        log_total.fill_(-torch.inf)
        counts = (targets >= 0).to(wide)
        if group is not None:
            targets = targets - group.rank * weight.size(0)
        for words in _chunks(weight.size(0), whole.size(0)):
            logits = (whole @ weight[words].t()).to(wide)
            of_target += _of_targets(logits, targets - words.start)
            torch.logaddexp(log_total, logits.logsumexp(-1), out=log_total)
        _joined(sums, group)
        ctx.save_for_backward(x, weight, targets, log_total, counts)
        return ((log_total - of_target) * counts).mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, targets, log_total, counts = ctx.saved_tensors
        whole = (gather_sequence(x, ctx.group)[0] if ctx.sequence else x).flatten(0, 1)
        share = grad / whole.size(0) * counts
        of_x, of_weight = torch.zeros_like(whole, dtype=share.dtype), torch.empty_like(weight)
        for words in _chunks(weight.size(0), whole.size(0)):
            part = (whole @ weight[words].t()).to(share.dtype)
            _to_gradients(part, log_total, targets - words.start, share)
            part = part.to(whole.dtype)
            of_x += part @ weight[words]
            torch.mm(part.t(), whole, out=of_weight[words])
        of_x = of_x.to(x.dtype).view(-1, *x.shape[1:])
        if ctx.sequence:
            of_x = scatter_sum(of_x, ctx.group)[0]
        elif ctx.group is not None:
            ctx.group.all_reduce(of_x, "tensor")
        return of_x, of_weight, None, None, None


def _joined(sums: Tensor, group: Group | None) -> Tensor:
    """Each token's log-sum of exponentials, and its target's logit, over all ranks' words."""
    if group is not None:
        log_total = sums[0]
        peak = log_total.clone()
        group.all_reduce(peak, "tensor", dist.ReduceOp.MAX)
        log_total.sub_(peak).exp_()
        group.all_reduce(sums, "tensor")
        log_total.log_().add_(peak)
    return sums


def _of_targets(logits: Tensor, targets: Tensor) -> Tensor:
    """Each token's logit of its target; 0 if that is not among these words."""
    local = targets.clamp(0, logits.size(-1) - 1)
    return logits.gather(-1, local[:, None]).squeeze(-1).masked_fill_(local != targets, 0)


def _to_gradients(logits: Tensor, log_total: Tensor, targets: Tensor, share: Tensor) -> None:
    """Turn logits (tokens, words) into gradients of the tokens' losses, times ``share``."""
    local = targets.clamp(0, logits.size(-1) - 1)
    inside = (local == targets).to(logits.dtype)
    logits.sub_(log_total[:, None]).exp_()
    logits.scatter_add_(-1, local[:, None], -inside[:, None]).mul_(share[:, None])


def _chunks(count: int, width: int) -> Iterator[slice]:
    """Chunks of ``count`` rows, of at most ``CHUNK_ELEMENTS`` elements unless of one row."""
    step = max(1, CHUNK_ELEMENTS // width)
    for begin in range(0, count, step):
        yield slice(begin, begin + step)


def cross_entropy(logits: Tensor, targets: Tensor, group: Group | None) -> Tensor:
    """Mean loss of next-token prediction, in float32; the whole logits are never in one place.

    Two small all-reduces over the group (Shoeybi et al. 2019, section 3).

    Logits are (sequence, batch, vocabulary / ranks of the group), targets (batch, sequence).
    Negative targets are ignored: they add nothing to the sum, which is divided by the number of
    all. Without a group the vocabulary is whole.
    """
    return _CrossEntropy.apply(logits.flatten(0, 1), targets.t().reshape(-1), group)


def chunk_loss(head: Head, group: Group | None, sequence: bool) -> None:
    """Make an output layer return the loss, computed in chunks, if it is given targets."""
    compute_logits = head.forward

    def forward(x: Tensor, tied: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        if targets is None:
            return compute_logits(x, tied)
        weight = head.weight if tied is None else tied
        rows = targets.t().reshape(-1)
        loss: Tensor = _ChunkedCrossEntropy.apply(x, weight, rows, group, sequence)
        return loss

    head.forward = forward  # type: ignore[method-assign]
