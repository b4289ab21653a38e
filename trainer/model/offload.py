"""Activation offload: what layers keep for their backward passes waits in the host's memory.

What a layer keeps is copied to pinned buffers while the next layer computes, and comes back while
the layer behind it computes backwards: the device holds that of two layers at most. Copies run on
a stream of their own, in order, so that a buffer can be used again as soon as it is free. Its size
is a power of two, as torch makes pinned ones: the next pass may give an expert fewer tokens.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

LEAST_BYTES = 4096  # smaller tensors stay: a copy's start costs more than they take


class _Memory:
    """Memory that a layer keeps: flat, on the device, in a buffer of the host, or in both.

    All of it moves, once however many views are kept, so that these have the same strides again.
    """

    host: Any = None

    def __init__(self, device: Any, layer: _Layer) -> None:
        self.device, self.layer = device, layer

    def __del__(self) -> None:
        if self.host is not None:
            buffer = self.host.untyped_storage()
            self.layer.offload.free[buffer.nbytes()].append(buffer)


class _View(NamedTuple):
    """A tensor that is kept."""

    memory: _Memory
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Layer:
    """One forward pass of a layer; ``before``: that of the layer before it."""

    def __init__(self, offload: Offload, before: _Layer | None) -> None:
        self.offload, self.before = offload, before
        self.held: list[weakref.ref[_Memory]] = []  # graphs alone keep it
        self.copied: Any = None  # event behind the copies to the host, or back

    def memories(self) -> list[_Memory]:
        return [memory for ref in self.held if (memory := ref()) is not None]


_keep: list[Callable[[Tensor], Any]] = []


def keeper() -> Callable[[Tensor], Any]:
    """Function that turns a tensor into what is kept of it; ``restored`` is its inverse."""
    return _keep[-1] if _keep else lambda x: x


def restored(kept: Any) -> Any:
    """The tensor of what was kept; anything else as it is."""
    if not isinstance(kept, _View):
        return kept
    kept.memory.layer.offload.fetch(kept.memory.layer)
    return kept.memory.device.view(kept.dtype).as_strided(kept.size, kept.stride, kept.offset)


class Offload:
    """Moves what the layers of this rank keep; on a CPU by the same copies without a stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.free: dict[int, list[torch.UntypedStorage]] = defaultdict(list)  # by their bytes
        self.last: _Layer | None = None
        self.leaving: list[_Memory] = []
        """What the last layer's forward pass kept, which may still be read on the device."""
        self.fetched: _Layer | None = None

    @contextmanager
    def keeping(self, begins: bool, held: Any) -> Iterator[None]:
        """Context of a layer's forward pass, which may be the first of a stage.

        ``held``: the layer, and what all layers read; their tensors stay.
        """
        if not torch.is_grad_enabled():
            yield
            return
        module, rest = held
        stays = {storage_of(x) for x in (*module.parameters(), *tree_leaves(rest)) if x is not None}
        layer = self.last = _Layer(self, None if begins else self.last)
        found: dict[int, _Memory] = {}

        def keep(x: Tensor) -> Tensor | _View:
            place, base = storage_of(x), x if x._base is None else x._base
            weight = place in stays or isinstance(base, nn.Parameter)  # experts come later
            if weight or x.untyped_storage().nbytes() < LEAST_BYTES:
                return x if x.is_leaf else x.detach()  # a node must not keep its own output
            if place not in found:
                elements = x.untyped_storage().nbytes() // x.element_size()
                found[place] = _Memory(x.detach().as_strided((elements,), (1,), 0), layer)
                layer.held.append(weakref.ref(found[place]))
            return _View(found[place], x.dtype, x.size(), x.stride(), x.storage_offset())

        _keep.append(keep)
        try:
            with saved_tensors_hooks(keep, restored):
                yield
        finally:
            _keep.pop()
        self._release()
        self.leaving = layer.memories()
        found.clear()  # the graph holds this function
        for memory in self.leaving:
            memory.host = self._buffer(memory.device)
        self._copy(layer, [(memory.host, memory.device) for memory in self.leaving])

    def fetch(self, layer: _Layer) -> None:
        """Let a layer's backward pass begin: what it kept is there, that of the layer before it on
        its way.
        """
        if layer is self.fetched:
            return
        self.fetched = layer
        if self.leaving and self.leaving[0].layer is layer:
            self.leaving = []  # it is there still, for its gradients to free
        self._release()
        self._copy_back(layer)
        self._wait(layer)
        if layer.before is not None:
            self._copy_back(layer.before)

    def _release(self) -> None:
        """Free the device's memory that the host has copies of."""
        if self.leaving:
            self._wait(self.leaving[0].layer)
        for memory in self.leaving:
            memory.device = None
        self.leaving = []

    def _copy_back(self, layer: _Layer) -> None:
        gone = [memory for memory in layer.memories() if memory.device is None]
        for memory in gone:  # memory of the stream that computes
            memory.device = torch.empty_like(memory.host, device=self.device)
        if gone:
            self._copy(layer, [(memory.device, memory.host) for memory in gone])

    def _buffer(self, like: Tensor) -> Tensor:
        size = 1 << (like.nbytes - 1).bit_length()
        if free := self.free[size]:
            buffer = free.pop()
        else:
            made = torch.empty(size, dtype=torch.uint8, pin_memory=self.stream is not None)
            buffer = made.untyped_storage()
        return torch.empty(0, dtype=like.dtype).set_(buffer, 0, like.shape)

    def _copy(self, layer: _Layer, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Copy a layer's memory beside the computation, behind all that it has begun."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        if self.stream is not None:
            layer.copied = self.stream.record_event()

    def _wait(self, layer: _Layer) -> None:
        if layer.copied is not None:
            torch.cuda.current_stream().wait_event(layer.copied)


def storage_of(x: Tensor) -> int:
    """Identity of a tensor's memory, which its views share."""
    return x.untyped_storage()._cdata
