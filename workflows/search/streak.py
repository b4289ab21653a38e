"""A search whose attempts fail one after the other is ended before it costs the allocation."""

from __future__ import annotations

from collections import deque

from analysis.run.fold import Run
from slurm.outcome.kinds import Kind, SaidOf
from workflows.search.stopping import CONTINUE, FAILED, Ending

HOPELESS = 8  # attempts in a row that crash or cannot start


class FailureStreak:
    """Watches for failures in a row that say nothing of one configuration in particular."""

    def __init__(self) -> None:
        self._latest: deque[Kind] = deque(maxlen=HOPELESS)

    def note(self, kind: Kind, message: str, run: Run) -> Ending | None:
        """Why the search should end after an attempt that ended so; None if it should not."""
        if kind.row.said_of is SaidOf.DRIVER:
            return None
        self._latest.append(kind)
        broken = [kind for kind in self._latest if kind.row.stops_search]
        launches = sum(not kind.told for kind in broken)
        if len(broken) < HOPELESS:
            return None
        never = not any(t.ok for t in run.trials.values())
        # A launch that fails says nothing of its trial: eight in a row, and none will start.
        if not never and launches < HOPELESS:
            return None
        how = "crashed or could not start" if launches else "crashed"
        how = "could not start" if launches == HOPELESS else how
        reason = f"the last {HOPELESS} attempts {how}; the last one: {message}"
        return Ending(reason, FAILED if never else CONTINUE)
