"""Virtual time: discrete events, in an order that does not depend on the machine's threads."""

from __future__ import annotations

import heapq
import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from slurm.clock import Clock

T = TypeVar("T")
Check = tuple[float, Callable[[], bool]]  # a moment, and whether to wake up then

_POLL_S = 0.02  # to see items that the clock was not told of: those of a failed thread


@dataclass(order=True)
class _Sleeper:
    next_t: float
    name: str
    until: float = field(compare=False)
    checks: list[Check] = field(compare=False)  # pending, the next one last
    stop: threading.Event = field(compare=False)
    wake: threading.Event = field(compare=False, default_factory=threading.Event)


class VirtualClock(Clock):
    """Time that jumps to the next event as soon as all threads wait for it (discrete events).

    One thread, the driver's, calls :meth:`receive`; the senders it waits for call :meth:`sleep`.
    Time stands still until every sender sleeps. Then only the sender with the earliest time is
    woken, and nothing else happens until its item has arrived. So the order of events is that of
    (time, name), whatever the machine's threads do.
    """

    def __init__(self, start: float) -> None:
        self._now = start
        self._sleepers: list[_Sleeper] = []  # a heap
        self._changed = threading.Condition()

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(
        self, until: float, name: str, stop: threading.Event, checks: Sequence[Check] = ()
    ) -> None:
        """Return when it is ``until``, or ``stop`` is set. For senders; ``name`` is unique.

        ``checks`` are earlier moments, in order; it returns at the first whose function is true.
        The functions run in the thread that calls ``receive``.
        """
        sleeper = _Sleeper(until, name, until, [c for c in checks if c[0] < until][::-1], stop)
        sleeper.next_t = sleeper.checks[-1][0] if sleeper.checks else until
        with self._changed:
            heapq.heappush(self._sleepers, sleeper)
            self._changed.notify()
        sleeper.wake.wait()

    def receive(
        self,
        inbox: queue.SimpleQueue[T],
        timeout_s: float | None,
        senders: int,
        until_s: float = math.inf,
    ) -> T | None:
        """The next item; see :meth:`Clock.receive`.

        ``timeout_s`` counts only without senders: with them, nothing happens between two events.
        """
        with self._changed:
            while inbox.empty() and len(self._sleepers) < senders:
                self._changed.wait(_POLL_S)
            if inbox.empty():
                if not self._sleepers:
                    self._now += timeout_s or 0.0
                    return None
                if self._idle_until(until_s):
                    return None
                self._next().wake.set()
        return inbox.get()

    def _idle_until(self, until_s: float) -> bool:
        """Whether ``until_s`` comes before any sleeper's time."""
        if self._sleepers[0].next_t <= until_s or any(s.stop.is_set() for s in self._sleepers):
            return False
        self._now = max(self._now, until_s)
        return True

    def _next(self) -> _Sleeper:
        """Remove the sleeper to wake next: one that is to stop, else the one with the next time."""
        stopped = [s for s in self._sleepers if s.stop.is_set()]
        if stopped:
            first = min(stopped)
            self._sleepers.remove(first)
            heapq.heapify(self._sleepers)
            return first
        while True:
            first = heapq.heappop(self._sleepers)
            self._now = max(self._now, first.next_t)
            if not first.checks or first.checks.pop()[1]():
                return first
            first.next_t = first.checks[-1][0] if first.checks else first.until
            heapq.heappush(self._sleepers, first)
