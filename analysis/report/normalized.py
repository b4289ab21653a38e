"""Metrics of trials that compare across batches, clusters and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis import units
from analysis.cost.groups import MissingFactError
from analysis.cost.roofline import Roofline, roofline
from analysis.metrics import Metrics
from analysis.prediction.pricing import Pricing
from analysis.report.tables import KEY_METRICS
from analysis.run.fold import Run
from analysis.run.trial import Trial
from trainer.plan.jobs import Array


def normalized(run: Run, ended: Sequence[Trial], pricing: Pricing | None) -> dict[str, Any]:
    """Metrics of the ended trials by name: a ``label`` and a column ``of`` values.

    Beside what trainers report: time per token, model FLOPs utilization, arithmetic intensity and
    attained rate, further objectives (energy where it is one), node-hours. NaN where nothing is
    known.
    """
    results = [Metrics(trial.result) for trial in ended]
    column = {key: _shown(key, [r.get(key) for r in results]) for key in KEY_METRICS}
    for key, _ in run.goals[1:]:
        column[key] = _shown(key, [trial.objectives.get(key) for trial in ended])
    labels = {key: units.label(key) for key in column}

    def add(name: str, label: str, values: Array) -> None:
        column[name], labels[name] = values, label

    add("us_per_token", "time per token (µs)", 1e6 / column["tokens_per_second"])
    cluster = pricing.space.cluster if pricing is not None else None
    if cluster is not None and cluster.peak_bf16_tflops:
        share = column["tflops_per_gpu"] / cluster.peak_bf16_tflops
        add("mfu", "model FLOPs utilization", share)
    if pricing is not None and (roof := roof_of(ended, pricing)):
        rows = [row for row, trial in enumerate(ended) if trial.ok]
        for name, label, values in (
            ("intensity", "arithmetic intensity (FLOPs/byte)", roof[0].intensity),
            ("attained", "attained rate (TFLOP/s per GPU)", roof[0].attained_tflops(roof[1])),
        ):
            add(name, label, np.full(len(ended), np.nan))
            column[name][rows] = values
    if not run.origin:
        add("node_hours", "node-hours", np.array([t.node_seconds / 3600 for t in ended]))
    return {
        name: {"label": labels[name], "of": values.tolist()}
        for name, values in column.items()
        if np.isfinite(values).any()
    }


def roof_of(ended: Sequence[Trial], pricing: Pricing) -> tuple[Roofline, Array] | None:
    """The roofline of the successes and their step times; None where the plan does not tell."""
    done = [trial for trial in ended if trial.ok]
    if not done:
        return None
    try:
        return roofline(pricing.model, pricing.jobs_of([t.config for t in done])), (
            pricing.step_times_s(done)
        )
    except (MissingFactError, ValueError, KeyError):
        return None


def _shown(key: str, values: Sequence[float | None]) -> Array:
    """The values in the unit in which they are shown, NaN for None."""
    known = [np.nan if value is None or value == 0 else value for value in values]
    return np.array([units.scaled(key, value) for value in known], dtype=float)
