"""The untried configurations that the search would choose next, and why; and how to resume it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from analysis import units
from analysis.cost.groups import MissingFactError
from analysis.cost.model import Prediction
from analysis.prediction.acquisition import UNLIKELY, acquisition, improvement
from analysis.report.outlook import Outlook
from analysis.run.fold import Run
from foundation.quantities import percent

SHOWN = 3  # configurations
PARTS = 2  # parts of a step that are named
SHARE = 0.01  # of a step, from which a change is named
_WORK_LEFT = (3, 130)  # exit codes of an unfinished search
_OWN_PROGRAM = "ask-tell"  # a program that runs the trials itself: there is no command


@dataclass(frozen=True)
class Next:
    """A configuration that has not been tried."""

    config: Mapping[str, Any]  # canonical
    # parameters in which it differs from the best trial: name, its value, this one
    changes: Sequence[tuple[str, Any, Any]]
    objective: float  # expected, in the unit shown; its 95 % interval is from low to high
    low: float
    high: float
    runs: float  # probability to run
    better: float  # probability to run and to beat the best trial
    gain: float  # expected improvement of the best, as a share of it, times ``runs``
    why: str  # the shares of a step that change most, in words; empty without a best trial


def next_trials(outlook: Outlook) -> list[Next]:
    """At most SHOWN untried configurations, in the order in which the search would choose them.

    The first of several configurations in which the model sees no difference stands for all.
    """
    run, pricing = outlook.run, outlook.pricing
    try:
        shortlist = outlook.shortlist
        rows = shortlist.untried(run)
        posterior = outlook.posterior(shortlist, rows)
        runs = posterior.feasibility
    except MissingFactError:  # such as the network, which only some configurations need
        return []
    if not np.any(runs >= UNLIKELY):
        return []
    best = run.best if run.best and run.best.positive else None
    value = acquisition(posterior, best)
    gain, better = improvement(posterior, best) if best else (0 * runs, 0 * runs)
    unit = units.scaled(pricing.space.objective.key, 1.0)
    now = outlook.model.predict(pricing.jobs_of([best.config])) if best else None
    before = best.config if best else {}
    found: list[Next] = []
    seen: set[tuple[float, float]] = set()
    for row in np.argsort(-value, kind="stable")[: 50 * SHOWN].tolist():
        alike = (round(float(posterior.mean[row]), 9), round(float(runs[row]), 9))
        unlikely = bool(found) and runs[row] < UNLIKELY
        if alike in seen or unlikely or np.isneginf(value[row]) or len(found) == SHOWN:
            continue
        seen.add(alike)
        index = shortlist.indices[rows[[row]]]
        config = pricing.space.canonical(outlook.candidates.configs(index)[0])
        interval = {name: x * unit for name, x in posterior.interval(row).items()}
        found.append(
            Next(
                config=config,
                changes=[(n, before[n], v) for n, v in config.items() if before.get(n, v) != v],
                **interval,
                runs=float(runs[row]),
                better=float(better[row] * runs[row]),
                gain=float(gain[row] * runs[row]),
                why=_why(now, posterior.prediction, row) if now else "",
            )
        )
    return found


def _why(best: Prediction, prediction: Prediction, row: int) -> str:
    """``bubble 3.1 % → 9.4 %``: the shares of a step that change most; batches may differ."""
    before, after = (
        {n: float(part[at] / of.step_time_s[at]) for n, part in of.time.as_dict().items()}
        for of, at in ((best, 0), (prediction, row))
    )
    named = sorted(after, key=lambda n: -abs(after[n] - before[n]))[:PARTS]
    return ", ".join(
        f"{n.replace('_', ' ')} {percent(before[n])} → {percent(after[n])}"
        for n in named
        if abs(after[n] - before[n]) > SHARE
    )


def resumption(run: Run, home: Path, budget: int | None, trials: int) -> tuple[str, str] | None:
    """A sentence and a command that continues the search; None if nothing is left to do.

    ``home`` is the folder's name in the command; if the trial ``budget`` ended the search, its new
    budget is ``trials``.
    """
    if run.launcher == _OWN_PROGRAM:
        return None
    again = f"meshtune search {quote(str(home / 'space.yaml'))}{run.launcher_option}"
    if run.closed is None or run.closed_code in _WORK_LEFT:
        return "The search is not finished. If it is not running, resume it with", again
    if run.closed_by is None:
        return None
    if run.closed_by == "trials":
        more = f"{again} --trials {max(budget or 0, trials)}"
        return "The trial budget is used up. To continue with more trials", more
    remedy = f"{'lower' if run.closed_by == 'expected_gain' else 'raise'} budget.{run.closed_by}"
    words = f"The search ended: {run.closed}. To continue, {remedy} in a copy of its space.yaml"
    copy = f"meshtune search COPY.yaml --run-dir {quote(str(home))}{run.launcher_option}"
    return words, copy
