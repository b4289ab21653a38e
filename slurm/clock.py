"""The driver's time; :mod:`slurm.simulated.clock` has that of a simulated cluster."""

from __future__ import annotations

import math
import queue
import time
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """The machine's time, steady even if somebody sets its clock."""

    def __init__(self) -> None:
        self._epoch_s = time.time() - time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch, steady from when this object was made."""
        return self._epoch_s + time.monotonic()

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never set back."""
        return time.monotonic()

    def receive(
        self,
        inbox: queue.SimpleQueue[T],
        timeout_s: float | None,
        senders: int,
        until_s: float = math.inf,
    ) -> T | None:
        """The next item of ``inbox``, into which each of ``senders`` threads still puts one.

        None if there is none within ``timeout_s`` (None: no limit), or by ``until_s`` on the clock
        of :meth:`monotonic`.
        """
        if until_s < math.inf:
            left_s = max(0.0, until_s - self.monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        try:
            return inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None
