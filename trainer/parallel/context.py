"""Context parallelism: ring attention over zig-zag sequences.

Keys and values go round the ring while attention works on those already received (Liu et al. 2023,
arXiv 2310.01889); all other operations treat each token by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.transformer import Block, Stage
from trainer.parallel.attention import Attended, attend_block, block_gradients
from trainer.parallel.collectives import Group
from trainer.parallel.mesh import Mesh

_groups: dict[str, Group] = {}
"""Groups by name, for the compiler's operators."""


def split_sequences(stage: Stage, mesh: Mesh, opaque: bool) -> None:
    """Make a stage, which works on this rank's chunks of each sequence, attend to all chunks.

    ``opaque``: attention is a custom operator, for the compiler.
    """
    group = mesh.cp.group
    assert group is not None
    name: str = group.handle.group_name
    if opaque:
        _groups[name] = group
    for block in stage.blocks.values():
        assert isinstance(block, Block)
        block.attention.attend = functools.partial(ring_attention, group=name if opaque else group)


def ring_attention(query: Tensor, key: Tensor, value: Tensor, group: Group | str) -> Tensor:
    """``attention.attend`` over sequences of which each rank holds its chunks."""
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    ring = _RingAttention.apply if isinstance(group, Group) else lambda *args: _ring(*args)[0]
    context: Tensor = ring(query, key, value, group)
    return context.permute(2, 0, 1, 3).flatten(2)


def _attended(query: Tensor, key: Tensor, value: Tensor, group: Group) -> Attended:
    """Attention over the whole ring; see ``_RingAttention``."""
    half = query.size(2) // 2
    own = attend_block(query, key, value, causal=True)
    output, log_sum = own.output.float(), own.log_sum.clone()
    for earlier, (keys, values) in _others(key, value, group):
        if earlier:
            part = slice(None)
            found = attend_block(query, keys[:, :, :half], values[:, :, :half], False)
        else:
            part = slice(half, None)
            found = attend_block(query[:, :, half:], keys, values, False)
        _join(output[:, :, part], log_sum[:, :, part], found)
    return Attended(output.to(query.dtype), log_sum)


class _RingAttention(torch.autograd.Function):
    """Ring attention of (batch, heads, sequence, head); the sequence is this rank's two chunks.

    Attention to own keys is causal. An earlier rank's first chunk precedes both own chunks and its
    second one follows them; both chunks of a later rank lie between the own ones.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: Group) -> Tensor:
        output, log_sum = _attended(query, key, value, group)
        ctx.group = group
        ctx.save_for_backward(query, key, value, output, log_sum)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, output, log_sum = ctx.saved_tensors
        group, half = ctx.group, query.size(2) // 2
        whole = Attended(output, log_sum)
        second = Attended(output[:, :, half:], log_sum[:, :, half:])
        own = block_gradients(grad, query, key, value, whole, causal=True)
        of_query = own[0].float()
        # Gradients follow keys and values round the ring: each rank adds its part and passes the
        # sum on, the keys' own rank last.
        total: Tensor | None = None
        arrive: Callable[[], None] | None = None
        for earlier, (keys, values) in _others(key, value, group):
            if earlier:
                seen = (keys[:, :, :half], values[:, :, :half])
                found = block_gradients(grad, query, *seen, whole, False)
                of_query += found[0]
                part = _packed(*found[1:], missing=half)
            else:
                late = (grad[:, :, half:], query[:, :, half:])
                found = block_gradients(*late, keys, values, second, False)
                of_query[:, :, half:] += found[0]
                part = _packed(*found[1:])
            if total is not None and arrive is not None:
                arrive()
                part = part + total
            total = torch.empty_like(part)
            arrive = group.rotate(total, part.contiguous())
        assert total is not None and arrive is not None
        arrive()
        of_key, of_value = _unpacked(total + _packed(*own[1:]), key, value)
        return of_query.to(query.dtype), of_key, of_value, None


@torch.library.custom_op("meshtune::ring", mutates_args=())
def _ring(query: Tensor, key: Tensor, value: Tensor, group: str) -> tuple[Tensor, Tensor]:
    output, log_sum = _attended(query, key, value, _groups[group])
    return output.contiguous(), log_sum.contiguous()


@torch.library.custom_op("meshtune::ring_backward", mutates_args=())
def _ring_backward(grad: Tensor, kept: list[Tensor], group: str) -> tuple[Tensor, Tensor, Tensor]:
    context = SimpleNamespace(saved_tensors=kept, group=_groups[group])
    of_query, of_key, of_value, _ = _RingAttention.backward(context, grad)
    # An operator's outputs must not share memory; these are views of one sum.
    return of_query.contiguous(), of_key.contiguous(), of_value.clone()


def _ring_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.group = inputs
    ctx.save_for_backward(*tensors, *output)


_ring.register_fake(
    lambda query, key, value, group: (
        query.new_empty(*query.shape[:3], value.size(-1)),
        query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32)),
    )
)
_ring_backward.register_fake(lambda _, kept, group: tuple(x.new_empty(x.shape) for x in kept[:3]))
_ring.register_autograd(
    lambda ctx, grad, _: (*_ring_backward(grad, [*ctx.saved_tensors], ctx.group), None),
    setup_context=_ring_setup,
)


def _packed(key: Tensor, value: Tensor, missing: int = 0) -> Tensor:
    """Keys and values as one message, with zeros for ``missing`` positions."""
    if key.shape == value.shape:  # fewer kernels than one for each
        both = torch.stack((key, value))
        return (F.pad(both, (0, 0, 0, missing)) if missing else both).flatten()
    parts = (F.pad(each, (0, 0, 0, missing)) if missing else each for each in (key, value))
    return torch.cat([each.flatten() for each in parts])


def _unpacked(both: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a message, with the shapes of ``key`` and ``value``."""
    first, second = both.split((key.numel(), value.numel()))
    return first.view(key.shape), second.view(value.shape)


def _others(
    key: Tensor, value: Tensor, group: Group
) -> Iterator[tuple[bool, tuple[Tensor, Tensor]]]:
    """Keys and values of all other ranks, backwards round the ring, each while the next is sent.

    Yields whether the rank's number is lower than this one's, and its keys and values.
    """
    here = _packed(key, value)
    arriving = torch.empty_like(here)
    wait = group.rotate(arriving, here)
    for step in range(1, group.size):
        wait()
        here = arriving
        if step < group.size - 1:
            arriving = torch.empty_like(here)
            wait = group.rotate(arriving, here)
        yield step <= group.rank, _unpacked(here, key, value)


def _join(output: Tensor, log_sum: Tensor, found: Attended) -> None:
    """Merge a further block's result into ``output`` and ``log_sum``, in place (online softmax)."""
    total = torch.logaddexp(log_sum, found.log_sum)
    output *= (log_sum - total).exp_()[..., None]
    output += found.output * (found.log_sum - total).exp_()[..., None]
    log_sum.copy_(total)
