"""Activation offload: saved activations wait in host memory for the backward pass.

A layer's activations are copied to pinned buffers while the next layer computes, and back during
that layer's backward pass: the device holds those of two layers at most. Copies run in order on a
stream of their own, so that a buffer can be used again as soon as it is free. Sizes are powers of
two, as those of torch's pinned memory: the next pass may give an expert fewer tokens.
"""

from __future__ import annotations

import functools
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
    """Memory of saved activations: flat, on the device, in a buffer of the host, or in both.

    It moves whole, once for all saved views, so that these keep their strides.
    """

    host: Any = None

    def __init__(self, device: Any, layer: _Layer) -> None:
        self.device, self.layer = device, layer

    def __del__(self) -> None:
        if self.host is not None:
            buffer = self.host.untyped_storage()
            self.layer.offload.free[buffer.nbytes()].append(buffer)

    def fetch(self, dtype: torch.dtype) -> Tensor:
        self.layer.offload.fetch(self.layer)
        return self.device.view(dtype)


class View(NamedTuple):
    """A saved tensor, as a view of memory that ``fetch`` brings back."""

    fetch: Callable[[], Tensor]
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, x: Tensor, fetch: Callable[[], Tensor]) -> View:
        return cls(fetch, x.size(), x.stride(), x.storage_offset())


class _Layer:
    """One forward pass of a layer; ``before``: that of the layer before it."""

    def __init__(self, offload: Offload, before: _Layer | None) -> None:
        self.offload, self.before = offload, before
        self.held: list[weakref.ref[_Memory]] = []  # only autograd's graphs keep it alive
        self.copied: Any = None  # event after the copies to the host, or back

    def memories(self) -> list[_Memory]:
        return [memory for ref in self.held if (memory := ref()) is not None]


_keep: list[Callable[[Tensor], Any]] = []


def keeper() -> Callable[[Tensor], Any]:
    """Function that packs a tensor to be saved; ``restored`` unpacks it."""
    return _keep[-1] if _keep else lambda x: x


def restored(kept: Any) -> Any:
    """The tensor of a view; anything else as it is."""
    if not isinstance(kept, View):
        return kept
    return kept.fetch().as_strided(kept.size, kept.stride, kept.offset)


class Offload:
    """Moves saved activations of this rank's layers; on a CPU by the same copies, no stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.free: dict[int, list[torch.UntypedStorage]] = defaultdict(list)  # by their bytes
        self.last: _Layer | None = None
        self.leaving: list[_Memory] = []
        """Memory of the last layer's forward pass, which may still be read on the device."""
        self.fetched: _Layer | None = None

    @contextmanager
    def keeping(self, begins: bool, held: Any) -> Iterator[None]:
        """Context of a layer's forward pass; ``begins``: it is the first layer of its stage.

        ``held``: the layer, and inputs that all layers read; their tensors stay on the device.
        """
        if not torch.is_grad_enabled():
            yield
            return
        module, rest = held
        stays = {storage_of(x) for x in (*module.parameters(), *tree_leaves(rest)) if x is not None}
        layer = self.last = _Layer(self, None if begins else self.last)
        found: dict[int, _Memory] = {}

        def keep(x: Tensor) -> Tensor | View:
            place, base = storage_of(x), x if x._base is None else x._base
            weight = place in stays or isinstance(base, nn.Parameter)  # experts come later
            if weight or x.untyped_storage().nbytes() < LEAST_BYTES:
                return x if x.is_leaf else x.detach()  # a node must not keep its own output
            if place not in found:
                elements = x.untyped_storage().nbytes() // x.element_size()
                found[place] = _Memory(x.detach().as_strided((elements,), (1,), 0), layer)
                layer.held.append(weakref.ref(found[place]))
            return View.of(x, functools.partial(found[place].fetch, x.dtype))

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
        """Copy a layer's activations back for its backward pass, and start on the layer before."""
        if layer is self.fetched:
            return
        self.fetched = layer
        if self.leaving and self.leaving[0].layer is layer:
            self.leaving = []  # still on the device; the backward pass frees it
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
        for memory in gone:  # allocated on the computing stream
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
        """Copy a layer's memory on the copy stream, after all computation submitted so far."""
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
