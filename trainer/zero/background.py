"""Collectives that overlap computation: on a stream of the device, or a thread of the host.

On an accelerator FSDP2 calls its hooks inside streams. On a CPU a call blocks, so one worker
thread per purpose takes a stream's place: it runs its calls in order while the main thread
computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

from trainer.parallel.collectives import Handle


class InlineStream:
    """Stream for calls made inside another stream's work, which keeps their order."""

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


class Pending:
    """Collectives under way; adding one completes the oldest if there are more than ``bound``."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.ends: deque[Callable[[], object]] = deque()

    def add(self, end: Callable[[], object]) -> None:
        """Add a collective that has begun; ``end`` waits for it and takes its result."""
        self.ends.append(end)
        self.keep(self.bound)

    def keep(self, most: int) -> None:
        """Complete the oldest until at most ``most`` are left; raises their errors."""
        while len(self.ends) > most:
            self.ends.popleft()()

    def finish(self) -> None:
        self.keep(0)


class ThreadStream:
    """A worker thread of the host; at most ``bound`` calls wait at once, each with its input."""

    def __init__(self, name: str, bound: int) -> None:
        self.executor = ThreadPoolExecutor(1, name)
        self.pending = Pending(bound)
        self.finish = self.pending.finish

    def run(self, work: Callable[[], None]) -> dist.Work:
        """Start a collective; returns a handle that FSDP2 waits for."""
        self.pending.keep(self.pending.bound - 1)
        future = self.executor.submit(torch.no_grad()(work))
        self.pending.add(future.result)
        return Handle(future.result)


CommunicationStream = DeviceStream | ThreadStream
"""Runs collectives one after another, beside the caller."""
