"""Order of work on a device's streams, and access to memory that no order protects."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_numbers = itertools.count()


class RaceError(AssertionError):
    """Two streams use the same memory, at least one writes, and neither waits for the other."""


class Stream:
    """A stream of the device: what it has done, and what it has waited for."""

    device_index = 0
    device_type = 1

    def __init__(self, name: object = None, priority: int = 0, **_: object) -> None:
        self.name = name if isinstance(name, str) else f"stream {next(_numbers)}"
        self.device = torch.device("cuda", 0)
        self.known: dict[Stream, int] = {self: 0}
        self.before: list[Stream] = []

    def wait(self, known: dict[Stream, int]) -> None:
        """Order what comes after what another stream knew."""
        for stream, tick in known.items():
            self.known[stream] = max(self.known.get(stream, 0), tick)

    def wait_stream(self, other: Stream) -> None:
        self.wait(other.known)

    def wait_event(self, event: Event) -> None:
        self.wait(event.known)

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        timeline.waits["stream.synchronize"] += 1

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        self.before.append(timeline.stream)
        timeline.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        timeline.stream = self.before.pop()


class Event:
    """A point in a stream."""

    def __init__(self, *_: object, **__: object) -> None:
        self.known: dict[Stream, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        self.known = dict((stream or timeline.stream).known)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or timeline.stream).wait(self.known)

    def synchronize(self) -> None:
        timeline.waits["event.synchronize"] += 1

    def query(self) -> bool:
        return True


class _Memory:
    """Who has used a tensor's memory since it was last written."""

    def __init__(self, storage: torch.UntypedStorage, owner: Stream) -> None:
        self.storage, self.owner = StorageWeakRef(storage), owner
        self.written: tuple[Stream, int, str] | None = None
        self.read: dict[Stream, tuple[int, str]] = {}
        self.kept: set[Stream] = set()
        """Streams that the allocator waits for (``Tensor.record_stream``)."""


class Timeline:
    """Work given to a device: kernels, bytes, and where the host waits for it."""

    def __init__(self) -> None:
        self.stream = self.main = Stream("main")
        self.orders = True
        self.reset()
        self.memory: dict[int, _Memory] = {}
        self.crossing: dict[int, _Memory] = {}

    def reset(self) -> None:
        """Count anew."""
        self.kernels: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def allocated(self, tensor: Tensor) -> _Memory:
        """The record of a tensor's memory; the first stream to use it owns it."""
        storage = tensor.untyped_storage()
        found = self.memory.get(storage._cdata)
        if found is None or found.storage.expired():
            found = self.memory[storage._cdata] = _Memory(storage, self.stream)
        return found

    def launch(
        self, name: str, reads: Iterable[Tensor], writes: Iterable[Tensor], stream: Stream | None
    ) -> None:
        """A kernel on a stream; raises RaceError."""
        if not self.orders:
            return
        stream = stream or self.stream
        self._check_freed()
        tick = stream.known[stream] = stream.known[stream] + 1
        for memory in {id(m): m for m in map(self.allocated, reads)}.values():
            self._after(stream, name, "reads", memory.written)
            memory.read[stream] = (tick, name)
            self._note_crossing(memory, stream)
        for memory in {id(m): m for m in map(self.allocated, writes)}.values():
            self._after(stream, name, "writes", memory.written)
            for other, (when, what) in memory.read.items():
                self._after(stream, name, "writes", (other, when, what))
            memory.written, memory.read = (stream, tick, name), {}
            self._note_crossing(memory, stream)

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        """See ``Tensor.record_stream``."""
        self.allocated(tensor).kept.add(stream)

    def _after(
        self, stream: Stream, name: str, does: str, earlier: tuple[Stream, int, str] | None
    ) -> None:
        if earlier is not None and stream.known.get(earlier[0], 0) < earlier[1]:
            raise RaceError(
                f"{name} on {stream.name} {does} memory that {earlier[2]} on {earlier[0].name} "
                "uses, and does not wait for it"
            )

    def _note_crossing(self, memory: _Memory, stream: Stream) -> None:
        if stream is not memory.owner:
            self.crossing[id(memory)] = memory

    def _check_freed(self) -> None:
        """Freed memory goes to its owner's next tensor, whatever other streams still do with it."""
        for key, memory in [*self.crossing.items()]:
            if memory.storage.expired():
                del self.crossing[key]
                uses = [*memory.read.items()]
                if memory.written is not None:
                    uses.append((memory.written[0], memory.written[1:]))
                for stream, (tick, name) in uses:
                    late = memory.owner.known.get(stream, 0) < tick
                    if stream is not memory.owner and late and stream not in memory.kept:
                        raise RaceError(
                            f"memory of {memory.owner.name} is freed while {name} on {stream.name} "
                            "may still use it"
                        )


timeline = Timeline()
