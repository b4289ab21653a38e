"""The least time between two launches, for the controller's sake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class LaunchPacing:
    """Keeps launches apart, for the controller's sake; for several threads."""

    def __init__(self, interval_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._monotonic = interval_s, monotonic
        self._turn = threading.Lock()
        self._last = float("-inf")

    def wait(self, stop: threading.Event) -> bool:
        """Wait until a launch is due; False if stopped meanwhile."""
        with self._turn:
            if stop.wait(max(0.0, self._last + self._interval_s - self._monotonic())):
                return False
            self._last = self._monotonic()
        return True
