"""The course of a search: best so far and failures over time (Dash et al. 2023, Figure 9)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.run.fold import Run
from analysis.run.trial import COMPLETED, Trial, meaning
from slurm import Kind


def succeeded(trial: Trial) -> bool:
    """Whether the trial gave an objective that can be compared."""
    return trial.ok and trial.objective is not None and math.isfinite(trial.objective)


def ended_t(trial: Trial) -> float:
    """When the trial ended for good, seconds since the epoch."""
    return trial.proposed_t if trial.ended_t is None else trial.ended_t


def idle_spans(run: Run) -> list[tuple[float, float]]:
    """Time between sessions: from the last event of one to the opening of the next.

    A run that is chained over several allocations waits in the queue between them; that time is
    no part of the search.

    Returns:
        (from, to) in seconds since the epoch, in order.
    """
    return list(zip(run.left_t, run.opened_t[1:], strict=True))


def search_time_s(t: float, origin_t: float, idle: Sequence[tuple[float, float]]) -> float:
    """Seconds of searching between ``origin_t`` and ``t``, idle spans left out."""
    return t - origin_t - sum(max(0.0, min(t, end) - start) for start, end in idle if t > start)


def failure_window(num_trials: int) -> int:
    """Trials over which the rolling share of failures is taken: a sixth, from 5 to 20."""
    return min(20, max(5, num_trials // 6))


def trajectory(run: Run) -> pd.DataFrame:
    """One row per ended trial, in the order in which they ended.

    Columns: ``trial``; ``search_s``, seconds of searching when it ended; ``kind``; ``objective``,
    NaN unless ok; ``best``, the best objective so far; ``failure_share``, failures among the last
    ``failure_window`` trials, where only trials count whose end says something about the
    configuration (not a lost node, say).
    """
    origin_t = run.opened_t[0] if run.opened_t else 0.0
    idle = idle_spans(run)
    ended = sorted(
        (t for t in run.trials.values() if t.ended), key=lambda t: (ended_t(t), t.number)
    )
    frame = pd.DataFrame(
        {
            "trial": pd.Series([t.number for t in ended], dtype=int),
            "search_s": pd.Series(
                [search_time_s(ended_t(t), origin_t, idle) for t in ended], dtype=float
            ),
            "kind": pd.Series([t.kind for t in ended], dtype=object),
            "objective": pd.Series(
                [t.objective if succeeded(t) else math.nan for t in ended], dtype=float
            ),
        }
    )
    best = frame["objective"].cummax() if run.maximize else frame["objective"].cummin()
    frame["best"] = best.ffill()
    completed = frame["kind"].isin(COMPLETED)
    failed = (frame["kind"] != Kind.OK.value)[completed].astype(float)
    share = failed.rolling(failure_window(len(failed)), min_periods=1).mean()
    frame["failure_share"] = share.reindex(frame.index).ffill()
    return frame


def failures(run: Run) -> pd.DataFrame:
    """One row per kind of failure, the most frequent first.

    Columns: ``kind``, ``trials``, ``share`` (of all ended trials), ``node_hours`` (all attempts),
    ``completed`` (the configuration made it fail), ``words`` and ``colour`` (of the kind) and
    ``example`` (the first trial's message).
    """
    ended = sorted((t for t in run.trials.values() if t.ended), key=lambda t: t.number)
    by_kind: dict[str, list[Trial]] = {}
    for trial in ended:
        if not trial.ok:
            by_kind.setdefault(str(trial.kind), []).append(trial)
    rows = [
        {
            "kind": kind,
            "trials": len(trials),
            "share": len(trials) / len(ended),
            "node_hours": sum(t.node_seconds for t in trials) / 3600,
            "completed": kind in COMPLETED,
            "words": meaning(kind)[0],
            "colour": meaning(kind)[1],
            "example": next((t.message for t in trials if t.message), ""),
        }
        for kind, trials in sorted(by_kind.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    columns = ["kind", "trials", "share", "node_hours", "completed", "words", "colour", "example"]
    return pd.DataFrame(rows, columns=columns)


def ranked_trials(run: Run) -> list[Trial]:
    """Successful trials, the best first; the earlier of equals first.

    Those that were stopped early come last: what they would have reached is not known.
    """
    sign = -1 if run.maximize else 1
    return sorted(
        (t for t in run.trials.values() if succeeded(t)),
        key=lambda t: (t.stopped_early, sign * (t.objective or 0.0), t.number),
    )
