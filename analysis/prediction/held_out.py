"""Cross-validation of the cost model on a run: trials predicted by models that did not see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.cost.model import LIKELY, Prediction
from analysis.prediction.pricing import Pricing, reported
from analysis.run.fold import Run
from analysis.run.trial import Trial
from analysis.units import GIB
from trainer.plan.jobs import Array, Jobs, Mask

FOLDS = 5
FEWER_FOLDS = 3  # with PLENTY trials: two folds are then enough to calibrate a model
PLENTY = 150
DOUBTFUL = 0.2  # median error of step times above which the page warns
ORDERED = 8  # successes from which the page warns of a bad order,
APART = 1.5  # if the slowest step takes at least this many times as long as the fastest,
DISORDERED = 0.3  # and the rank correlation is below this
FEW = 5  # fewer trials give neither a rank correlation nor a share of failures


@dataclass(frozen=True)
class CrossValidation:
    """Trials that ran or ran out of memory; columns of shape (n,)."""

    trials: tuple[int, ...]  # their numbers
    prediction: Prediction  # by the model calibrated with all of them
    before_s: Array  # step times by the model before calibration
    held_out_s: Array  # by models that were each calibrated without the trial itself
    held_out_bytes: Array  # peak memory, likewise
    held_out_fits: Array  # probability to fit, likewise
    measured_s: Array  # step times; nan where a trial failed or gave none
    measured_bytes: Array  # peak memory, likewise
    out_of_memory: Mask  # which of them failed for lack of memory

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
        from scipy.stats import spearmanr  # slow to import

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
    def by_trial(self) -> list[dict[str, Any]]:
        """A record per trial; memory in GiB, nan where nothing was measured."""
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
    def blind(self) -> bool:
        """Whether most out-of-memory failures were not predicted."""
        failures = int(np.count_nonzero(self.out_of_memory))
        return failures >= FEW and self.foreseen < failures / 2

    @property
    def disordered(self) -> bool:
        """Whether trials that differ by far more than noise are ranked badly."""
        known = self.measured_s[np.isfinite(self.measured_s)]
        if len(known) < ORDERED or known.max() < APART * known.min():
            return False
        return self.rank_correlation < DISORDERED

    @property
    def doubtful(self) -> bool:
        """Whether step times, their order or failures by memory are far off."""
        return self.blind or self.disordered or self.median_errors["time"] > DOUBTFUL


def cross_validated(run: Run) -> CrossValidation | None:
    """Predictions for a run's trials that ran or ran out of memory.

    A model predicts its own calibration trials too well. The trials are therefore split into
    FOLDS parts (FEWER_FOLDS of many trials), and each part is predicted by a model calibrated with
    the others; see ``Pricing.telling``.

    None if the space cannot be read or priced, or no trial informs the model.
    """
    pricing = Pricing.of_run(run.folder)
    trials = pricing.teaching(t for _, t in sorted(run.trials.items())) if pricing else []
    if pricing is None or not trials:
        return None
    try:
        before = pricing.predict([t.config for t in trials])
    except ValueError:  # the cluster's facts lack a link that these trials cross
        return None
    whole = pricing.calibrated(pricing.telling(trials))
    return CrossValidation(
        trials=tuple(t.number for t in trials),
        prediction=whole.predict(before.jobs),
        before_s=before.step_time_s,
        **_held_out(pricing, trials, before.jobs),
        measured_s=pricing.step_times_s(trials),
        measured_bytes=np.array([reported(t, "peak_memory_bytes") for t in trials]),
        out_of_memory=np.array([not t.ok for t in trials]),
    )


def _held_out(pricing: Pricing, trials: list[Trial], jobs: Jobs) -> dict[str, Array]:
    """Step times, peak bytes and probabilities to fit, each by a model without the trial."""
    times_s, peaks, fits = np.empty((3, len(trials)))
    parts = np.arange(len(trials)) % (FEWER_FOLDS if len(trials) >= PLENTY else FOLDS)
    for part in np.unique(parts):
        own = np.flatnonzero(parts == part)
        others = [t for t, p in zip(trials, parts, strict=True) if p != part]
        model = pricing.calibrated(pricing.telling(others))
        found = model.predict(jobs[own])
        times_s[own], fits[own] = found.step_time_s, found.fits
        peaks[own] = model.reported_peak_bytes(found.jobs)
    return {"held_out_s": times_s, "held_out_bytes": peaks, "held_out_fits": fits}


def _median(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if known.size else float("nan")
