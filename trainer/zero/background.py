"""Collectives beside the computation: on a stream of the device, or a thread of the host.

On an accelerator FSDP2 calls its hooks inside streams. On a CPU a call blocks, so one worker
thread per purpose takes a stream's place: it runs its calls in order while the main thread
computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist


class InlineStream:
    """Stream for calls that already run, in order, inside another stream's work."""

    def run(self, work: Callable[[], None]) -> None:
        work()

    def record_event(self) -> Any:
        """Event that marks all work submitted so far; None if there is nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Make later work wait for an event of another stream."""


class DeviceStream(InlineStream):
    """The accelerator's current stream at each call."""

    def record_event(self) -> torch.Event:
        return torch.accelerator.current_stream().record_event()

    def wait_event(self, event: torch.Event | None) -> None:
        """The device waits, the host does not."""
        if event is not None:
            torch.accelerator.current_stream().wait_event(event)

    def finish(self) -> None:
        """Nothing to do: FSDP2 makes the main stream wait at the end of the backward pass."""


class ThreadStream:
    """A worker thread of the host; at most ``bound`` calls wait at once, each with its input."""

    def __init__(self, name: str, bound: int) -> None:
        self.bound = bound
        self.executor = ThreadPoolExecutor(1, name)
        self.pending: deque[Future[None]] = deque()

    def run(self, work: Callable[[], None]) -> dist.Work:
        """Start a collective; returns a handle to wait for."""
        while len(self.pending) >= self.bound:
            self.pending.popleft().result()
        future = self.executor.submit(torch.no_grad()(work))
        self.pending.append(future)
        return _ThreadWork(future)

    def finish(self) -> None:
        """Wait for all collectives; raises what one of them raised."""
        while self.pending:
            self.pending.popleft().result()


class _ThreadWork(dist.Work):
    """Handle that FSDP2 waits for before it uses gathered weights."""

    def __init__(self, future: Future[None]) -> None:
        super().__init__()
        self.future = future

    def wait(self, timeout: Any = None) -> bool:
        self.future.result()
        return True


class Pending:
    """Collectives under way; adding one ends the oldest where there are more than ``bound``."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.ends: deque[Callable[[], None]] = deque()

    def add(self, end: Callable[[], None]) -> None:
        """Add a collective that has begun, by what waits for it and takes its result."""
        self.ends.append(end)
        while len(self.ends) > self.bound:
            self.ends.popleft()()

    def finish(self) -> None:
        while self.ends:
            self.ends.popleft()()


CommunicationStream = DeviceStream | ThreadStream
"""Runs collectives one after another, beside the caller."""
