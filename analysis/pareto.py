"""The Pareto front of a run with several objectives: successes that no other one beats in all."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analysis.run.fold import Run
from analysis.run.trial import Trial

Array = NDArray[np.float64]


def non_dominated(figures: Array) -> NDArray[np.bool_]:
    """Which rows no other row beats: as good in every column and better in one.

    Args:
        figures: shape (n, k); more is better in every column. Of equal rows all are kept.
    """
    kept = np.ones(len(figures), dtype=bool)
    # Whatever beats a row has a greater sum, so that good rows come first and remove many.
    for row in np.argsort(-figures.sum(axis=1), kind="stable"):
        if kept[row]:
            beaten = (figures <= figures[row]).all(axis=1) & (figures < figures[row]).any(axis=1)
            kept &= ~beaten
    return kept


def front(run: Run) -> list[Trial]:
    """The non-dominated successes, by the first objective, the best first.

    Of trials with the same figures the earliest. Empty where the run has one objective.
    """
    trials = comparable(run)
    if not trials:
        return []
    figures = np.array([run.merits(trial) for trial in trials])
    found: dict[tuple[float, ...], Trial] = {}
    for index in np.flatnonzero(non_dominated(figures)):
        found.setdefault(tuple(figures[index]), trials[index])
    return [trial for _, trial in sorted(found.items(), reverse=True)]


def comparable(run: Run) -> list[Trial]:
    """Successes with a finite figure for every objective, by number; none if there is only one."""
    goals = run.goals
    return [
        trial
        for _, trial in sorted(run.trials.items())
        if trial.ok
        and len(goals) > 1
        and not trial.early
        and all(math.isfinite(trial.objectives.get(key, math.nan)) for key, _ in goals)
    ]
