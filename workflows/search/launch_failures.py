"""Failed launches in a row: the pauses between them, and which trials they are held against."""

from __future__ import annotations

import math

from slurm import Kind

# Eight failed launches in a row, which end a search, take two minutes: a restarted controller
# creates no step until the nodes have registered with it.
FIRST_PAUSE_S, LAST_PAUSE_S = 2.0, 60.0


def is_launch_failure(kind: Kind) -> bool:
    """Whether the next trial would fail likewise: no step can be created, the disk is full."""
    return kind.row.stops_search and not kind.observed


class LaunchFailures:
    """Failed launches since a trial last got its processes.

    Launches that were under way together fail together: they are one wave and count once.
    """

    def __init__(self) -> None:
        self.wave = 0  # number of failed waves so far
        self.trials: set[int] = set()  # whose launches failed since one succeeded
        self.resume_s = -math.inf  # earliest time of the next launch, on the clock of ``now_s``
        self._in_a_row = 0

    def note(self, trial: int, kind: Kind, wave: int, now_s: float) -> bool:
        """Note the end of an attempt begun in ``wave``; False if its failure is counted already."""
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
