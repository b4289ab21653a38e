"""Launches that fail one after the other: the pauses between them, and whose fault they are not."""

from __future__ import annotations

import math

from slurm import Kind

# Eight launches in a row, which end a search, take two minutes: a controller that is started anew
# creates no step until the nodes have reported to it.
FIRST_PAUSE_S, LAST_PAUSE_S = 2.0, 60.0


def is_launch_failure(kind: Kind) -> bool:
    """Whether an end says that the next trial will fare no better: no step, no room on the disk."""
    return kind.row.stops_search and not kind.observed


class LaunchFailures:
    """Failed launches with no trial between them that got its processes.

    Those that were under way together fail together: they are one wave, and count once.

    Attributes:
        wave: how many there were.
        trials: whose launches failed since one has succeeded.
        resume_s: nothing should be launched before, on the clock of ``now_s``.
    """

    def __init__(self) -> None:
        self.wave = 0
        self.trials: set[int] = set()
        self.resume_s = -math.inf
        self._in_a_row = 0

    def note(self, trial: int, kind: Kind, wave: int, now_s: float) -> bool:
        """Take note of how an attempt ended.

        Args:
            trial: its trial's number.
            kind: how.
            wave: as it was when the attempt began.
            now_s: its end.

        Returns:
            False if it failed together with one that was counted.
        """
        together = wave < self.wave
        if not is_launch_failure(kind):
            if kind.observed and not together:  # its processes ran
                self.trials.clear()
                self._in_a_row = 0
            return True
        self.trials.add(trial)
        if together:
            return False
        self.wave += 1
        self._in_a_row += 1
        if self._in_a_row > 1:
            pause_s = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._in_a_row - 2))
            self.resume_s = now_s + pause_s
        return True
