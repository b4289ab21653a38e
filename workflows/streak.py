"""A search whose every attempt fails the same way is ended before it costs the allocation."""

from __future__ import annotations

from analysis.run import Run
from slurm.core import Kind
from workflows.ending import CONTINUE, FAILED, Ending

HOPELESS = 8  # attempts in a row that crash or cannot start


class FailureStreak:
    """Counts failures in a row that say nothing of one configuration in particular."""

    def __init__(self) -> None:
        self._length = 0

    def note(self, kind: Kind, message: str, run: Run) -> Ending | None:
        """Why the search should end after an attempt that ended so; None if it should not."""
        if kind is Kind.CANCELLED:
            return None
        self._length = self._length + 1 if kind in (Kind.CRASH, Kind.LAUNCH_FAILURE) else 0
        if self._length < HOPELESS:
            return None
        never = not any(t.ok for t in run.trials.values())
        # A launch that fails says nothing of its trial: eight in a row, and none will start.
        if not never and kind is not Kind.LAUNCH_FAILURE:
            return None
        reason = f"the last {self._length} trials failed alike ({kind}): {message}"
        return Ending(reason, FAILED if never else CONTINUE)
