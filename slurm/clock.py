"""Time as a driver sees it; :mod:`slurm.simulated.clock` has that of a simulated cluster."""

from __future__ import annotations

import math
import queue
import time
from typing import TypeVar

T = TypeVar("T")


class Clock:
    """The machine's own time, which goes on steadily even if somebody sets the machine's clock."""

    def __init__(self) -> None:
        self._epoch_s = time.time() - time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch, by what the machine's clock said when this one was made."""
        return self._epoch_s + time.monotonic()

    def monotonic(self) -> float:
        """Seconds since some moment; never set back."""
        return time.monotonic()

    def receive(
        self,
        inbox: queue.SimpleQueue[T],
        timeout_s: float | None,
        senders: int,
        until_s: float = math.inf,
    ) -> T | None:
        """The next item of ``inbox``; None if there is none in time.

        Args:
            inbox: what several threads put their one item into, when they are done.
            timeout_s: None: wait for ever.
            senders: how many threads have not put theirs, or it was not taken yet.
            until_s: by :meth:`monotonic`; it is waited no longer, whatever ``timeout_s``.
        """
        if until_s < math.inf:
            left_s = max(0.0, until_s - self.monotonic())
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        try:
            return inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None
