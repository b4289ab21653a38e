"""Outcomes of trials: as they came, failures by kind, and successes, the best first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from analysis.run.fold import Run
from analysis.run.trial import COMPLETED, Trial, meaning


def succeeded(trial: Trial) -> bool:
    """Whether the trial has a finite objective."""
    return trial.ok and trial.objective is not None and math.isfinite(trial.objective)


def ended_t(trial: Trial) -> float:
    """When the trial ended for good, seconds since the epoch."""
    return trial.proposed_t if trial.ended_t is None else trial.ended_t


def in_order(run: Run) -> list[Trial]:
    """The ended trials in the order in which they ended."""
    return sorted(run.ended, key=lambda trial: (ended_t(trial), trial.number))


def trajectory(run: Run) -> pd.DataFrame:
    """One row per ended trial, in the order in which they ended.

    Columns: ``trial``; ``search_s``, seconds of searching when it ended; ``kind``; ``objective``,
    NaN unless ok; ``best``, the best objective so far.
    """
    ended = in_order(run)
    kinds = {"trial": int, "search_s": float, "kind": object, "objective": float}
    rows = [
        (t.number, run.search_s(ended_t(t)), t.kind, t.objective if succeeded(t) else math.nan)
        for t in ended
    ]
    frame = pd.DataFrame(rows, columns=list(kinds)).astype(kinds)
    counted = frame["objective"].where(np.array([not t.violated for t in ended], bool))
    best = counted.cummax() if run.maximize else counted.cummin()
    frame["best"] = best.ffill()
    return frame


def failures(run: Run) -> list[dict[str, Any]]:
    """A record of each kind of failure, the most frequent first.

    It has ``kind``, ``trials``, ``share`` (of all reported trials), ``node_hours`` (all attempts),
    ``completed`` (the configuration made it fail), ``nobodys`` (each configuration would fail so),
    ``words`` and ``colour`` (of the kind) and ``example`` (the first trial's message).
    """
    reported = run.reported
    by_kind: dict[str, list[Trial]] = {}
    for trial in reported:
        if not trial.ok:
            by_kind.setdefault(trial.kind or "crash", []).append(trial)
    failed = sum(map(len, by_kind.values()))
    return [
        {
            "kind": kind,
            "trials": len(trials),
            "share": len(trials) / len(reported),
            "node_hours": sum(t.node_seconds for t in trials) / 3600,
            "completed": kind in COMPLETED,
            "words": meaning(kind)[0],
            "colour": meaning(kind)[1],
            "nobodys": len(reported) == failed
            and kind in COMPLETED
            and all(run.is_nobodys(t.message) for t in reported if t.completed or t.crashes),
            "example": next((t.message for t in trials if t.message), ""),
        }
        for kind, trials in sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def blamed(run: Run) -> Callable[[str], tuple[str, str]]:
    """Give the ``meaning`` of kinds, in grey if no configuration caused such ends."""
    nobodys = {row["kind"] for row in failures(run) if row["nobodys"]}
    return lambda kind: (meaning(kind)[0], "gray") if kind in nobodys else meaning(kind)


def ranked_trials(run: Run) -> list[Trial]:
    """Successful trials, the best first; the earlier of equals first.

    Trials that violate a bound come after them, and last those that were stopped early: their
    final objective is not known.
    """
    sign = -1 if run.maximize else 1
    return sorted(
        (t for t in run.trials.values() if succeeded(t)),
        key=lambda t: (t.stopped_early, bool(t.violated), sign * (t.objective or 0.0), t.number),
    )
