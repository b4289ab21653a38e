"""When ``results.csv`` is written: often, at a small share of the machine's time."""

from __future__ import annotations

import time

from analysis.run.fold import Run
from analysis.run.folder import RunFolder

PAUSE = 20  # after writing the file, in times of what it took


class Results:
    """Keeps a run's ``results.csv`` up to date.

    All of it is written anew; once per trial, that would grow with the square of the trials.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.stale = False  # not all that ended is in it
        self._folder = folder
        self._due_s = 0.0  # on the machine's clock, also where time is virtual

    def catch_up(self, run: Run) -> None:
        """Write what is new, if it is time."""
        begin_s = time.perf_counter()
        if self.stale and begin_s >= self._due_s:
            self._folder.write_results(run)
            self.stale = False
            end_s = time.perf_counter()
            self._due_s = end_s + PAUSE * (end_s - begin_s)
