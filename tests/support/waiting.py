"""Waiting for what happens in other processes: by asking again, never by sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = 300.0) -> None:
    """Return when ``condition`` holds.

    Raises:
        AssertionError: if it does not within ``deadline_s``; ``what`` is named.
    """
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.05)
