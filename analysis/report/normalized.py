"""Metrics of trials that compare across batches, clusters and models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis import units
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
    attained rate (with the GPU's ``limits``), further objectives (energy where it is one),
    node-hours. NaN where nothing is known.
    """
    results = [Metrics(trial.result) for trial in ended]
    column = {key: _shown(key, [r.get(key) for r in results]) for key in KEY_METRICS}
    for key, _ in run.goals[1:]:
        column[key] = _shown(key, [trial.objectives.get(key) for trial in ended])
    labels = {key: units.label(key) for key in column}

    def add(name: str, label: str, values: Array) -> None:
        column[name], labels[name] = values, label

    with np.errstate(divide="ignore"):
        add("us_per_token", "time per token (µs)", 1e6 / column["tokens_per_second"])
    cluster = pricing.space.cluster if pricing is not None else None
    if cluster is not None and cluster.peak_bf16_tflops:
        share = column["tflops_per_gpu"] / cluster.peak_bf16_tflops
        add("mfu", "model FLOPs utilization", share)
    roof, rows = None, [row for row, trial in enumerate(ended) if trial.ok]
    if pricing is not None and (roof := _roofline([ended[row] for row in rows], pricing)):
        step_s = pricing.step_times_s([ended[row] for row in rows])
        for name, label, values in (
            ("intensity", "arithmetic intensity (FLOPs/byte)", roof.intensity),
            ("attained", "attained rate (TFLOP/s per GPU)", roof.attained_tflops(step_s)),
        ):
            add(name, label, np.full(len(ended), np.nan))
            column[name][rows] = values
    if not run.origin:
        add("node_hours", "node-hours", np.array([t.node_seconds / 3600 for t in ended]))
    found: dict[str, Any] = {
        name: {"label": labels[name], "of": values.tolist()}
        for name, values in column.items()
        if np.isfinite(values).any()
    }
    if roof and "attained" in found:
        limits = {"peak_tflops": roof.peak_tflops, "gb_per_s": roof.gb_per_s}
        found["attained"]["limits"] = limits
    return found


def _roofline(done: Sequence[Trial], pricing: Pricing) -> Roofline | None:
    """The roofline of successes; None where the plan or the cluster's facts do not tell."""
    try:
        return roofline(pricing.model, pricing.jobs_of([t.config for t in done])) if done else None
    except ValueError:  # a fact is missing, or the space has other parameters
        return None


def _shown(key: str, values: Sequence[float | None]) -> Array:
    """The values in the unit in which they are shown, NaN for None."""
    known = [np.nan if value is None else value for value in values]
    return np.array([units.scaled(key, value) for value in known], dtype=float)
