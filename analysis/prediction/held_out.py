"""The cost model's word on a run's trials, beside what they measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from analysis.cost.jobs import Array, Mask
from analysis.cost.model import Prediction
from analysis.run.fold import Run
from analysis.units import GIB

LIKELY = 0.5  # probability to fit from which running out of memory comes unforeseen
DOUBTFUL = 0.2  # median error of step times from which the page warns
FEW = 5  # trials below which neither a rank correlation nor a share of failures says much


@dataclass(frozen=True)
class Forecast:
    """Trials that ran or ran out of memory; columns of shape (n,).

    Attributes:
        trials: their numbers.
        prediction: by the model calibrated with all of them.
        before_s: step times by the model before any of them.
        held_out_s: by models that were each calibrated without the trial itself.
        held_out_bytes: peak memory, likewise.
        held_out_fits: probability to fit, likewise.
        measured_s: step times; nan where a trial failed or gave none.
        measured_bytes: peak memory, likewise.
        out_of_memory: which of them failed for lack of memory.
    """

    trials: tuple[int, ...]
    prediction: Prediction
    before_s: Array
    held_out_s: Array
    held_out_bytes: Array
    held_out_fits: Array
    measured_s: Array
    measured_bytes: Array
    out_of_memory: Mask

    @property
    def time_error(self) -> Array:
        """Predicted over measured step time, less 1."""
        return np.asarray(self.held_out_s / self.measured_s - 1)

    @property
    def memory_error(self) -> Array:
        """Predicted over measured peak memory, less 1."""
        return np.asarray(self.held_out_bytes / self.measured_bytes - 1)

    @property
    def median_errors(self) -> dict[str, float]:
        """Median absolute errors of ``time``, of ``time_before`` and of ``memory``; nan if none."""
        errors = {
            "time": self.time_error,
            "time_before": self.before_s / self.measured_s - 1,
            "memory": self.memory_error,
        }
        return {name: _median(np.abs(error)) for name, error in errors.items()}

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of predicted and measured step times; nan for fewer than ``FEW``."""
        known = np.isfinite(self.measured_s)
        if np.count_nonzero(known) < FEW or np.ptp(self.measured_s[known]) == 0:
            return float("nan")
        return float(spearmanr(self.held_out_s[known], self.measured_s[known]).statistic)

    @property
    def foreseen(self) -> int:
        """Trials out of memory that were expected not to fit."""
        return int(np.count_nonzero(self.out_of_memory & (self.held_out_fits < LIKELY)))

    @property
    def false_alarms(self) -> int:
        """Trials that ran though they were expected not to fit."""
        return int(np.count_nonzero(~self.out_of_memory & (self.held_out_fits < LIKELY)))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of the page's table: one per trial, memory in GiB, nan where nothing was measured."""
        columns = {
            "number": self.trials,
            "out_of_memory": self.out_of_memory.tolist(),
            "measured_s": self.measured_s.tolist(),
            "predicted_s": self.held_out_s.tolist(),
            "time_error": self.time_error.tolist(),
            "measured_gib": (self.measured_bytes / GIB).tolist(),
            "predicted_gib": (self.held_out_bytes / GIB).tolist(),
            "memory_error": self.memory_error.tolist(),
            "fits": self.held_out_fits.tolist(),
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @property
    def doubtful(self) -> bool:
        """Whether step times are far off, or most failures by memory came unforeseen."""
        failures = int(np.count_nonzero(self.out_of_memory))
        blind = failures >= FEW and self.foreseen < failures / 2
        return blind or self.median_errors["time"] > DOUBTFUL


Forecaster = Callable[[Run], Forecast | None]
"""Makes the forecast of a run; None where the cost model has no word for its space."""


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")
