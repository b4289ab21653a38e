"""``results.csv``: a run's trials in DeepHyper's columns, derived from the journal."""

from __future__ import annotations

import csv
import io
import time
from typing import Any

from analysis.run.fold import Run
from analysis.run.folder import RunFolder
from foundation.messages import shown
from foundation.writing import write_atomically

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
TRY_AGAIN_S = 10.0  # after a failure
PAUSE = 20  # after writing the file, in times of what it took


def write_results(folder: RunFolder, run: Run) -> None:
    """Write ``results.csv``: ``p:`` parameters, objective, job, ``m:`` metrics.

    Several objectives are ``objective_0`` and so on, as measured, and ``pareto_efficient``.
    """
    ended = [t for t in sorted(run.trials.values(), key=lambda t: t.number) if t.ended]
    metrics = sorted({key for t in ended for key, v in t.result.items() if _is_scalar(v)})
    parameters = list(dict.fromkeys(name for t in ended for name in t.config))
    keys = [key for key, _ in run.goals]
    several = len(keys) > 1
    efficient = {t.number for t in run.front()}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [f"p:{name}" for name in parameters]
        + ([f"objective_{i}" for i in range(len(keys))] if several else ["objective"])
        + ["job_id", "job_status"]
        + [f"m:{key}" for key in metrics]
        + (["pareto_efficient"] if several else [])
    )
    for t in ended:
        row = [t.config.get(name) for name in parameters]
        if several:
            row += [t.objectives.get(key) if t.ok else f"F_{t.kind}" for key in keys]
        else:
            row.append(t.objective if t.ok else f"F_{t.kind}")
        row += [t.number, "DONE" if t.ok else "FAILED"]
        row += [_inert(t.result.get(key)) for key in metrics]
        writer.writerow(row + ([t.number in efficient] if several else []))
    write_atomically(folder.results_file, text.getvalue())


class ResultsFile:
    """Keeps a run's ``results.csv`` up to date, at a small share of the machine's time.

    All of it is written anew; once per trial, that would grow with the square of the trials.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.stale = False  # not all that ended is in it
        self._folder = folder
        self._trouble = ""  # why it could not be written
        self._due_s = 0.0  # on the machine's clock, also where time is virtual

    def catch_up(self, run: Run, *, now: bool = False) -> str:
        """Write what is new, if it is time, or ``now``.

        Returns:
            Why it cannot be written, once while it cannot; "" otherwise. The journal has it all,
            and it is tried again.
        """
        begin_s = time.perf_counter()
        if not (now or (self.stale and begin_s >= self._due_s)):
            return ""
        told, self._trouble = self._trouble, ""
        try:
            write_results(self._folder, run)
            self.stale = False
        except OSError as error:
            self._trouble = f"{shown(self._folder.results_file)} is not written: {error.strerror}"
        end_s = time.perf_counter()
        self._due_s = end_s + (TRY_AGAIN_S if self._trouble else PAUSE * (end_s - begin_s))
        return "" if self._trouble == told else self._trouble


def _inert(value: Any) -> Any:
    """A trainer's text as a spreadsheet shows it, and does not compute it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float, str))
