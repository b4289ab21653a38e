"""``results.csv``: a run's trials in DeepHyper's columns."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

from analysis.run.fold import Run
from analysis.run.folder import RunFolder
from foundation.messages import shown
from foundation.writing import write_atomically

_SCALAR = int | float | str
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
TRY_AGAIN_S = 10.0  # after a failure
PAUSE = 20  # between two writes, in multiples of how long the last one took


class ResultsFile:
    """Keeps ``results.csv`` up to date at a small share of the driver's time.

    The whole file is rewritten; doing so for each trial would take time quadratic in their number.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.stale = False  # trials have ended that it lacks
        self._file = folder.results_file
        self._trouble = ""  # why it could not be written
        self._due_s = 0.0  # on the machine's clock, also where time is virtual

    def catch_up(self, run: Run, *, now: bool = False) -> str:
        """Write new trials if it is time to, or ``now``.

        Returns why that failed, if the reason is new; else "". Later calls try again.
        """
        begin_s = time.perf_counter()
        if not (now or (self.stale and begin_s >= self._due_s)):
            return ""
        known, self._trouble = self._trouble, ""
        try:
            self.write(run)
        except OSError as error:
            self._trouble = f"{shown(self._file)} is not written: {error.strerror}"
        end_s = time.perf_counter()
        self._due_s = end_s + (TRY_AGAIN_S if self._trouble else PAUSE * (end_s - begin_s))
        return "" if self._trouble == known else self._trouble

    def write(self, run: Run) -> None:
        """Write the reported trials: ``p:`` parameters, objective, job, ``m:`` metrics.

        Several objectives are ``objective_0`` and so on, as measured, and ``pareto_efficient``;
        with bounds on measured values there is ``satisfies``.
        """
        trials = run.reported
        metrics = sorted(
            {key for t in trials for key, v in t.result.items() if isinstance(v, _SCALAR)}
        )
        parameters = list(dict.fromkeys(name for t in trials for name in t.config))
        keys = [key for key, _ in run.goals]
        several = len(keys) > 1
        efficient = {t.number for t in run.front()}
        columns: dict[str, list[Any]] = {
            f"p:{name}": [t.config.get(name) for t in trials] for name in parameters
        }
        for i, key in enumerate(keys):
            columns[f"objective_{i}" if several else "objective"] = [
                (t.objectives.get(key) if several else t.objective)
                if t.ok
                else f"F_{t.kind or 'crash'}"
                for t in trials
            ]
        columns["job_id"] = [t.number for t in trials]
        columns["job_status"] = ["DONE" if t.ok else "FAILED" for t in trials]
        columns |= {f"m:{key}": [_inert(t.result.get(key)) for t in trials] for key in metrics}
        if run.subject_to:
            columns["satisfies"] = [t.ok and not t.violated for t in trials]
        if several:
            columns["pareto_efficient"] = [t.number in efficient for t in trials]
        text = io.StringIO()
        rows = zip(*columns.values(), strict=True)
        csv.writer(text, lineterminator="\n").writerows([list(columns), *rows])
        write_atomically(self._file, text.getvalue())
        self.stale = False


def _inert(value: Any) -> Any:
    """Text that a spreadsheet shows and does not evaluate as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
