"""What a tracker of experiments is told of a trial: parameters, metrics, and what came of it."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any

from analysis import Metrics, Run, Trial


class TrackerError(Exception):
    """A tracker that did not take what it was told; the message names the remedy."""


@dataclass(frozen=True)
class Logged:
    """A trial, as a run of a tracker's.

    Attributes:
        name: of it.
        parameters: its configuration, without what was inactive.
        metrics: the objective, what else was measured, and what it cost; all of them finite.
        tags: what else is known, as text.
        started_t, ended_t: seconds since the epoch.
    """

    name: str
    parameters: dict[str, Any]
    metrics: dict[str, float]
    tags: dict[str, str]
    started_t: float
    ended_t: float


def logged(run: Run, trial: Trial) -> Logged:
    """What there is to tell of a trial that has ended."""
    measured = Metrics(trial.result).all() if trial.ok else {}
    for key, _ in run.goals:
        value = trial.objectives.get(key, trial.objective)
        if value is not None:
            measured[key] = value
    expected = {f"expected.{key}": value for key, value in trial.expected.items()}
    figures = {**measured, **expected, "node_hours": trial.node_seconds / 3600}
    started_t = trial.attempts[0].started_t if trial.attempts else trial.proposed_t
    return Logged(
        name=f"trial {trial.number}",
        parameters={name: v for name, v in trial.config.items() if v is not None},
        metrics={key: float(v) for key, v in figures.items() if math.isfinite(v)},
        tags={
            "trial": str(trial.number),
            "kind": str(trial.kind),
            "by": trial.by,
            "why": trial.why,
            "measurements": str(len(trial.measurements)),
            "stopped_early": str(trial.stopped_early).lower(),
            "message": trial.message,
        },
        started_t=started_t,
        ended_t=trial.ended_t or started_t,
    )


def identity(run: Run) -> str:
    """Of a run, among all: trials of others have the same numbers."""
    return f"{run.fingerprint[:12]}-{run.opened_t[0] if run.opened_t else 0.0:.0f}"


def ended(run: Run) -> list[Trial]:
    """The trials that there is something to tell of, by number."""
    return [trial for _, trial in sorted(run.trials.items()) if trial.ended]


def tracker(name: str) -> Any:
    """The module of a tracker.

    Raises:
        ValueError: if it is not installed; the message names the remedy.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"{name} is not installed; `pip install 'meshtune[trackers]'` brings it"
        ) from None
