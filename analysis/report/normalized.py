"""Metrics of trials that compare across batches, clusters and models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from analysis import units
from analysis.cost.roofline import roofline
from analysis.metrics import Metrics
from analysis.prediction.pricing import Pricing
from analysis.report.tables import KEY_METRICS
from analysis.run.fold import Run
from analysis.run.trial import Trial
from trainer.plan.jobs import Array


def normalized(run: Run, ended: Sequence[Trial], pricing: Pricing | None) -> dict[str, Any]:
    """Metrics of the ended trials by name: a ``label`` and a column ``of`` values, or the metric
    that they follow from, ``times * values ** power``.

    Beside what trainers report: time per token, model FLOPs utilization, arithmetic intensity and
    attained rate (with the GPU's ``limits``), further objectives (energy where it is one),
    node-hours. NaN where nothing is known.
    """
    results = [Metrics(trial.result) for trial in ended]
    column = {key: _shown(key, [r.get(key) for r in results]) for key in KEY_METRICS}
    for key, _ in run.goals[1:]:
        column[key] = _shown(key, [trial.objectives.get(key) for trial in ended])
    roof, rows = None, [row for row, trial in enumerate(ended) if trial.ok]
    done = [ended[row] for row in rows]
    if pricing is not None and done:
        with suppress(ValueError):  # a fact is missing, or the space has other parameters
            roof = roofline(pricing.model, pricing.jobs_of([trial.config for trial in done]))
            attained = roof.attained_tflops(pricing.step_times_s(done))
            for name, values in (("intensity", roof.intensity), ("attained", attained)):
                column[name] = np.full(len(ended), np.nan)
                column[name][rows] = values
    if not run.origin:
        column["node_hours"] = np.array([t.node_seconds / 3600 for t in ended])
    found: dict[str, Any] = {
        name: {"label": units.label(name), "of": values.tolist()}
        for name, values in column.items()
        if np.isfinite(values).any()
    }
    peak = pricing.model.cluster.peak_bf16_tflops if pricing is not None else None
    for name, source, power, times in (
        ("us_per_token", "tokens_per_second", -1, 1e6),
        ("mfu", "tflops_per_gpu", 1, 1 / peak if peak else 0.0),
    ):
        if source in found and times:
            follows = {"name": source, "power": power, "times": times}
            found[name] = {"label": units.label(name), "of": follows}
    if roof and "attained" in found:
        found["attained"]["limits"] = {"peak_tflops": roof.peak_tflops, "gb_per_s": roof.gb_per_s}
    return found


def _shown(key: str, values: Sequence[float | None]) -> Array:
    """The values in the unit in which they are shown, NaN for None."""
    known = [np.nan if value is None else value for value in values]
    return np.array([units.scaled(key, value) for value in known], dtype=float)
