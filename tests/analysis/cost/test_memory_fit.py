"""The memory model learns from peaks and failures, and says how sure it is that a job fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.cost.memory import MemoryConstants, memory, reported
from analysis.cost.memory_fit import Measurements, MemoryModel
from search_spaces.known import FRAMEWORKS
from support.gpt_jobs import gpt
from trainer.plan.jobs import Jobs

GIB = 2.0**30
MEGATRON = FRAMEWORKS["megatron-lm"]


def seen(jobs: Jobs, peak_bytes: Any, failed: Any) -> Measurements:
    """Trials without step times."""
    return Measurements(jobs, np.full(len(jobs), np.nan), peak_bytes, failed)


def _observed(truth: MemoryConstants, limit_bytes: float) -> tuple[Jobs, Any, Any]:
    job = gpt(
        num_layers=24,
        mbs=np.tile([1.0, 2, 4, 8, 16, 24, 32, 48], 3),
        tp=np.repeat([2.0, 4, 8], 8),
        sequence_parallel=True,
    )
    fails = memory(job, MEGATRON, truth).total > limit_bytes
    peaks = np.where(fails, np.nan, reported(job, MEGATRON, truth)[0])
    return job, peaks, fails


def test_calibration_moves_towards_the_constants_that_made_the_evidence() -> None:
    truth = MemoryConstants(activation_scale=1.06, workspace_bytes=0.5 * GIB)
    limit = 80 * GIB
    job, peaks, fails = _observed(truth, limit)
    assert fails.any() and not fails.all()
    before, after = (
        MemoryModel(),
        MemoryModel().calibrated(seen(job, peaks, fails), MEGATRON, limit),
    )
    known = ~fails

    def error(model: MemoryModel) -> float:
        return float(np.abs(model.peak_bytes(job, MEGATRON)[known] / peaks[known] - 1).mean())

    assert error(after) < error(before) / 2
    assert np.all((after.fits(job, MEGATRON, limit) < 0.5)[fails])


def test_a_failure_that_needs_little_memory_teaches_nothing() -> None:
    job = gpt(mbs=np.array([1.0, 1.0]), num_layers=2)
    unknown = np.full(2, np.nan)
    failed = np.array([True, True])
    assert MemoryModel().calibrated(seen(job, unknown, failed), MEGATRON, 80 * GIB) == MemoryModel()


def test_the_probability_falls_smoothly_over_the_limit() -> None:
    job = gpt(mbs=np.arange(1.0, 60.0), num_layers=24, sequence_parallel=True)
    needed = memory(job, MEGATRON, MemoryConstants()).total
    fits = MemoryModel().fits(job, MEGATRON, float(needed[30]))
    assert np.all(np.diff(fits) <= 0)
    assert fits[0] > 0.99 and fits[-1] < 0.01
    assert fits[30] == pytest.approx(0.5)
    assert 0.05 < fits[29] < 0.95, "near the limit nothing is certain"


def test_before_any_evidence_the_constants_are_in_doubt_too() -> None:
    job = gpt(num_layers=24, sequence_parallel=True)
    limit = float(memory(job, MEGATRON, MemoryConstants()).total[0]) * 1.1
    sure = MemoryModel(covariance=np.zeros((8, 8)))
    assert 0.5 < MemoryModel().fits(job, MEGATRON, limit)[0] < sure.fits(job, MEGATRON, limit)[0]


@pytest.mark.parametrize("share", [0.4, 1.5])
def test_what_no_constant_explains_is_learnt_as_the_formulas_misfit(share: float) -> None:
    """Of three trials, of the jobs that need least."""
    job, _, _ = _observed(MemoryConstants(), 80 * GIB)
    needed = share * memory(job, MEGATRON, MemoryConstants()).total
    peaks = share * reported(job, MEGATRON, MemoryConstants())[0]
    limit, tried = float(np.median(needed)), np.argsort(needed)[:3]
    none = np.zeros(len(tried), dtype=bool)
    learnt = MemoryModel().calibrated(seen(job[tried], peaks[tried], none), MEGATRON, limit)

    def right(model: MemoryModel) -> float:
        return float(np.mean((model.fits(job, MEGATRON, limit) >= 0.5) == (needed <= limit)))

    assert right(MemoryModel()) < 0.75 and right(learnt) > 0.85
    assert learnt.peak_bytes(job, MEGATRON) == pytest.approx(peaks, rel=0.35)
