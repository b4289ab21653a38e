"""A trial as an experiment tracker's run: parameters, metrics and outcome."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any

from analysis import Metrics, Run, Trial


class TrackerError(Exception):
    """A tracker refused trials; the message names the remedy."""


@dataclass(frozen=True)
class Logged:
    """A trial as a tracker's run."""

    name: str  # shown by the tracker
    parameters: dict[str, Any]  # the configuration, without inactive parameters
    # objectives, other measurements, predictions and node-hours; all of them finite
    metrics: dict[str, float]
    tags: dict[str, str]  # other facts, as text
    started_t: float  # seconds since the epoch
    ended_t: float


def logged(run: Run, trial: Trial) -> Logged:
    """The record of a trial that has ended."""
    measured = Metrics(trial.result).all() if trial.ok else {}
    for key, _ in run.goals:
        value = trial.objectives.get(key, trial.objective)
        if value is not None:
            measured[key] = value
    expected = {f"expected.{key}": value for key, value in trial.expected.items()}
    metrics = {**measured, **expected, "node_hours": trial.node_seconds / 3600}
    started_t, ended_t = times(trial)
    return Logged(
        name=f"trial {trial.number}",
        parameters={name: v for name, v in trial.config.items() if v is not None},
        metrics={key: float(v) for key, v in metrics.items() if math.isfinite(v)},
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
        ended_t=ended_t,
    )


def times(trial: Trial) -> tuple[float, float]:
    """Start and end of a trial, seconds since the epoch."""
    started_t = trial.attempts[0].started_t if trial.attempts else trial.proposed_t
    return started_t, trial.ended_t or started_t


def identity(run: Run) -> str:
    """A run's name that is unique among all runs: trials of others have the same numbers."""
    return f"{run.fingerprint[:12]}-{run.opened_t[0] if run.opened_t else 0.0:.0f}"


def tracker(name: str) -> Any:
    """A tracker's module; raises ValueError with the remedy if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"{name} is not installed; `pip install 'meshtune[trackers]'` brings it"
        ) from None
