"""Failures of a run by kind, and the kinds that no configuration caused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.run.fold import Run
from analysis.run.trial import COMPLETED, Trial, meaning


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
