"""What to try next: configurations that the calibrated model expects most of, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import units
from analysis.cost.groups import MissingFactError
from analysis.cost.jobs import Array
from analysis.cost.model import Prediction
from analysis.prediction.time_limits import in_time
from analysis.report.outlook import Outlook
from foundation.quantities import percent
from search_spaces import Indices

SHOWN = 3  # configurations
UNLIKELY = 0.05  # probability to fit, below which none is considered
PARTS = 2  # parts of a step that are named
SHARE = 0.01  # of a step, from which a change is told


@dataclass(frozen=True)
class Next:
    """A configuration that has not been tried.

    Attributes:
        config: canonical.
        changes: parameters in which it differs from the best trial: name, its value, this one.
        objective, low, high: what is expected, and its 95 % interval, in the unit shown.
        runs: probability to run.
        better: to run and to be better than the best trial.
        gain: by which it is expected to raise the best, as a share of it; 0 where it is no better.
        why: the shares of a step that change most, in words; empty without a best trial.
    """

    config: Mapping[str, Any]
    changes: Sequence[tuple[str, Any, Any]]
    objective: float
    low: float
    high: float
    runs: float
    better: float
    gain: float
    why: str


def next_trials(outlook: Outlook) -> list[Next]:
    """At most SHOWN untried configurations, by the gain that is expected of them.

    Without a successful trial by what is expected of them, times the probability to run. Of
    configurations in which the model sees no difference the first stands for all.
    """
    run, pricing, model = outlook.run, outlook.pricing, outlook.model
    tried = outlook.candidates.indices_of([t.config for t in run.trials.values()])
    open_ = ~np.isin(outlook.indices, tried) & (outlook.fits >= UNLIKELY)
    indices: Indices = outlook.indices[open_]
    if not len(indices):
        return []
    expectation = outlook.expectation(indices)
    try:
        prediction, mean, deviation, residual = expectation.doubted(model)
    except MissingFactError:  # such as the network, which only some configurations need
        return []
    ends = in_time(pricing.space, prediction, run.trials.values())
    runs = prediction.fits * ends * expectation.survival(model, run)
    sign = 1.0 if pricing.space.objective.maximize else -1.0
    best = run.best if run.best and (run.best.objective or 0.0) > 0 else None
    over, better = _improvement(
        mean, deviation, sign * float(np.log(best.objective or 1.0)) if best else 0.0
    )
    order = np.argsort(-(over * runs if best else np.exp(mean) * runs), kind="stable")
    found: list[Next] = []
    seen: set[tuple[float, float]] = set()
    unit = units.scaled(pricing.space.objective.key, 1.0)
    now = model.predict(pricing.jobs_of([best.config])) if best else None
    for row in order[: 50 * SHOWN]:
        alike = (round(float(mean[row]), 9), round(float(runs[row]), 9))
        if alike in seen or len(found) == SHOWN:
            continue
        seen.add(alike)
        worse, more = residual.edges(float(deviation[row]))
        ends_at = sorted(np.exp(sign * (mean[row] + x)) * unit for x in (-worse, more))
        config = pricing.space.canonical(outlook.candidates.configs(indices[[row]])[0])
        before = best.config if best else {}
        found.append(
            Next(
                config=config,
                changes=[(n, before[n], v) for n, v in config.items() if before.get(n, v) != v],
                objective=float(np.exp(sign * mean[row]) * unit),
                low=float(ends_at[0]),
                high=float(ends_at[1]),
                runs=float(runs[row]),
                better=float(better[row] * runs[row]) if best else 0.0,
                gain=float(over[row] * runs[row]) if best else 0.0,
                why=_why(now, prediction, int(row)) if now else "",
            )
        )
    return found


def _improvement(mean: Array, deviation: Array, best: float) -> tuple[Array, Array]:
    """Expected share by which a log-normal figure exceeds the best, and the chance that it does."""
    from scipy.special import ndtr  # slow to import

    ahead = (mean - best) / deviation
    better = ndtr(ahead)
    over = np.exp(mean - best + deviation**2 / 2) * ndtr(ahead + deviation) - better
    return np.maximum(over, 0.0), np.asarray(better)


def _why(best: Prediction, prediction: Prediction, row: int) -> str:
    """``bubble 3.1 % → 9.4 %``: the shares of a step that change most; batches may differ."""
    shares = [
        {n: float(part[at] / of.step_time_s[at]) for n, part in of.time.as_dict().items()}
        for of, at in ((best, 0), (prediction, row))
    ]
    before, after = shares
    named = sorted(after, key=lambda n: -abs(after[n] - before[n]))[:PARTS]
    return ", ".join(
        f"{n.replace('_', ' ')} {percent(before[n])} → {percent(after[n])}"
        for n in named
        if abs(after[n] - before[n]) > SHARE
    )
