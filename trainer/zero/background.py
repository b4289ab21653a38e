"""Where collectives run beside the computation: a stream of the device, or a thread of the host.

An accelerator has streams, and FSDP2 calls its hooks inside them. On a CPU a call blocks, so one
worker thread per purpose does what a stream does: it runs what it is given in the given order,
while this thread computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Lane(Protocol):
    """Runs pieces of work one after another, beside the caller."""

    def run(self, work: Callable[[], None]) -> dist.Work | None:
        """Begin a piece of work; returns what to wait for, or None where the stream keeps order."""
        ...

    def finish(self) -> None:
        """Until all is done; raises what a piece of work raised."""
        ...


class Queue(Protocol):
    """Runs pieces of work in order, and can be told to wait for another queue."""

    def run(self, work: Callable[[], None]) -> None: ...

    def mark(self) -> Any:
        """A point in this queue: everything that was given to it before."""
        ...

    def after(self, mark: Any) -> None:
        """Let what is given to this queue from now on wait for another's mark."""
        ...


class StreamLane:
    """Lane and queue: the stream that is current at each call, on an accelerator."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def mark(self) -> torch.Event:
        return torch.accelerator.current_stream().record_event()

    def after(self, mark: torch.Event | None) -> None:
        """The device waits, the host does not."""
        if mark is not None:
            torch.accelerator.current_stream().wait_event(mark)

    def finish(self) -> None:
        """FSDP2 lets the main stream wait for its own at the end of the backward pass."""


class InOrder:
    """The queue of what runs inside one lane's pieces of work, and so is in order already."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def mark(self) -> None:
        return None

    def after(self, mark: None) -> None:
        """Nothing to wait for."""


class ThreadLane:
    """A worker thread of the host.

    Args:
        name: of the thread.
        bound: pieces of work that may wait at once; each holds its input in memory.
    """

    def __init__(self, name: str, bound: int) -> None:
        self.bound = bound
        self.executor = ThreadPoolExecutor(1, name)
        self.pending: deque[Future[None]] = deque()

    def run(self, work: Callable[[], None]) -> dist.Work:
        while len(self.pending) >= self.bound:
            self.pending.popleft().result()
        future = self.executor.submit(_without_gradients, work)
        self.pending.append(future)
        return _Pending(future)

    def finish(self) -> None:
        while self.pending:
            self.pending.popleft().result()


class _Pending(dist.Work):
    """What FSDP2 waits for before it uses gathered weights."""

    def __init__(self, future: Future[None]) -> None:
        super().__init__()
        self.future = future

    def wait(self, timeout: Any = None) -> bool:
        self.future.result()
        return True


def _without_gradients(work: Callable[[], None]) -> None:
    with torch.no_grad():
        work()
