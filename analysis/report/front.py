"""Data of the page's figure of the Pareto front."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from analysis import units
from analysis.run.fold import Run
from analysis.run.trial import Trial

WIDE = 8.0  # ratio of largest to smallest value above which an axis is logarithmic
NAMED = 12  # points of the front that are labelled with their trial


def shown(run: Run, trial: Trial) -> list[float]:
    """A success's objectives in the units in which they are shown."""
    return [units.scaled(key, trial.objectives[key]) for key, _ in run.goals]


def sought(run: Run) -> str:
    """``Maximizes throughput (tokens/s), minimizes nodes``."""
    goals = [f"{'maximizes' if up else 'minimizes'} {units.label(k)}" for k, up in run.goals]
    text = ", ".join(goals)
    return text[0].upper() + text[1:]


def figure(run: Run, listed: Collection[int]) -> dict[str, Any]:
    """Successes over the first two objectives; only ``listed`` trials are drawn.

    ``labels`` and ``up`` (maximized) of the objectives; ``log``: logarithmic axes of the first two;
    ``front`` and ``rest``: ``[trial, first, second, third?]`` of each point; ``counts`` of both;
    ``named``: labelled points of the front; ``steps``, with two objectives: (second, first) of the
    line of the best first objective at no worse a second one.
    """
    front, every = run.front(), run.comparable()
    numbers = {trial.number for trial in front}
    best = [t for t in front if t.number in listed]
    rest = [t for t in every if t.number in listed and t.number not in numbers]
    columns = list(zip(*(shown(run, trial) for trial in every), strict=True))
    _, second_up = run.goals[1]
    points = sorted(((p[1], p[0]) for p in (shown(run, t) for t in best)), reverse=second_up)
    return {
        "labels": [units.label(key) for key, _ in run.goals],
        "up": [up for _, up in run.goals],
        "log": [min(c) > 0 and max(c) / min(c) > WIDE for c in columns[:2]],
        "front": [[t.number, *shown(run, t)] for t in best],
        "rest": [[t.number, *shown(run, t)] for t in rest],
        "counts": [len(front), len(every) - len(front)],
        "named": NAMED,
        "steps": points if len(run.goals) == 2 else [],
    }
