"""Context parallelism: ring attention over zig-zag sequences.

Keys and values go round the ring while attention works on those that are here (Liu et al. 2023,
arXiv 2310.01889); all else works on each token by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.transformer import Block, Stage
from trainer.parallel.attention import Attended, attend_block, block_gradients
from trainer.parallel.collectives import Group
from trainer.parallel.mesh import Mesh
from trainer.plan.axes.cp import held_chunks


def split_sequences(stage: Stage, mesh: Mesh) -> None:
    """Make a stage work on this rank's chunks of each sequence and attend to all chunks."""
    group = mesh.cp.group
    assert group is not None
    stage.chunks = held_chunks(stage.model.seq_length, group.rank, group.size)
    if stage.positions is not None:
        stage.positions.chunks = stage.chunks
    for block in stage.blocks.values():
        assert isinstance(block, Block)
        block.attention.attend = functools.partial(ring_attention, group=group)
        block.repeat_attention_only()


def ring_attention(query: Tensor, key: Tensor, value: Tensor, group: Group) -> Tensor:
    """``transformer.attend`` over sequences of which each rank holds its chunks."""
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    context: Tensor = _RingAttention.apply(query, key, value, group)
    return context.permute(2, 0, 1, 3).flatten(2)


class _RingAttention(torch.autograd.Function):
    """All of (batch, heads, sequence, head); the sequence is this rank's two chunks.

    Own keys are causal. Of an earlier rank, the first chunk precedes both own ones and the second
    follows them; of a later rank, both lie between.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group) -> Tensor:
        half = query.size(2) // 2
        own = attend_block(query, key, value, causal=True)
        output, log_sum = own.output.float(), own.log_sum.clone()
        for earlier, (keys, values) in _others(torch.stack((key, value)), group):
            if earlier:
                part = slice(None)
                found = attend_block(query, keys[:, :, :half], values[:, :, :half], False)
            else:
                part = slice(half, None)
                found = attend_block(query[:, :, half:], keys, values, False)
            _join(output[:, :, part], log_sum[:, :, part], found)
        result = output.to(query.dtype)
        ctx.group = group
        ctx.save_for_backward(query, key, value, result, log_sum)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sum = ctx.saved_tensors
        group, half = ctx.group, query.size(2) // 2
        whole = Attended(output, log_sum)
        second = Attended(output[:, :, half:], log_sum[:, :, half:])
        own = block_gradients(grad, query, key, value, whole, causal=True)
        of_query = own[0].float()
        homeward = _Homeward(group)
        for earlier, (keys, values) in _others(torch.stack((key, value)), group):
            if earlier:
                seen = (keys[:, :, :half], values[:, :, :half])
                found = block_gradients(grad, query, *seen, whole, False)
                of_query += found[0]
                part = F.pad(torch.stack(found[1:]), (0, 0, 0, half))
            else:
                late = (grad[:, :, half:], query[:, :, half:])
                found = block_gradients(*late, keys, values, second, False)
                of_query[:, :, half:] += found[0]
                part = torch.stack(found[1:])
            homeward.add(part)
        of_key, of_value = homeward.last() + torch.stack(own[1:])
        return of_query.to(query.dtype), of_key, of_value, None


def _others(own: Tensor, group: Group) -> Iterator[tuple[bool, Tensor]]:
    """Keys and values of the ranks before this one, nearest first, each while the next comes.

    Yields whether the rank is before this one, and (2, batch, heads, sequence, head).
    """
    here = own.contiguous()
    arriving = torch.empty_like(here)
    wait = group.rotate(arriving, here, "context")
    for step in range(1, group.size):
        wait()
        here = arriving
        if step < group.size - 1:
            arriving = torch.empty_like(here)
            wait = group.rotate(arriving, here, "context")
        yield step <= group.rank, here


class _Homeward:
    """Gradients that follow keys and values round the ring: each rank adds its part and passes them
    on, the keys' own rank last."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.arriving: Tensor | None = None
        self.wait: Callable[[], None]

    def add(self, part: Tensor) -> None:
        """Add this rank's part for the keys that it has just used."""
        if self.arriving is not None:
            self.wait()
            part = part + self.arriving
        self.arriving = torch.empty_like(part)
        self.wait = self.group.rotate(self.arriving, part.contiguous(), "context")

    def last(self) -> Tensor:
        """The sum of all other ranks' parts for this rank's own keys."""
        assert self.arriving is not None
        self.wait()
        return self.arriving


def _join(output: Tensor, log_sum: Tensor, found: Attended) -> None:
    """Add what a further block gave to ``output`` and ``log_sum``, in place (online softmax)."""
    total = torch.logaddexp(log_sum, found.log_sum)
    output *= (log_sum - total).exp_()[..., None]
    output += found.output * (found.log_sum - total).exp_()[..., None]
    log_sum.copy_(total)
