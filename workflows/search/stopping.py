"""Why a session of a search ends, and its exit code.

A search whose attempts all fail ends before it uses up the allocation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from analysis import Run
from slurm import Kind

DONE, FAILED, CONTINUE, INTERRUPTED = 0, 1, 3, 130
MAX_IN_A_ROW = 8  # attempts in a row that crash or cannot start


@dataclass(frozen=True)
class Ending:
    """Why the driver stopped, and the process's exit code."""

    reason: str
    code: int


class RepeatedFailures:
    """Counts failures in a row that are not specific to one configuration."""

    def __init__(self) -> None:
        self._latest: deque[Kind] = deque(maxlen=MAX_IN_A_ROW)

    def note(self, kind: Kind, message: str, run: Run) -> Ending | None:
        """Why the search should end after this attempt; None if it should not."""
        if kind.row.cause == "driver":
            return None
        self._latest.append(kind)
        broken = [kind for kind in self._latest if kind.row.stops_search]
        launches = sum(not kind.observed for kind in broken)
        never = not any(t.ok for t in run.trials.values())
        # A failed launch is not about its trial: after eight in a row none will start.
        if len(broken) < MAX_IN_A_ROW or not (never or launches == MAX_IN_A_ROW):
            return None
        how = "crashed or could not start" if launches else "crashed"
        how = "could not start" if launches == MAX_IN_A_ROW else how
        reason = f"the last {MAX_IN_A_ROW} attempts {how}; the last one: {message}"
        return Ending(reason, FAILED if never else CONTINUE)
