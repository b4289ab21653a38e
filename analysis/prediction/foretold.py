"""Errors of the predictions that were made before a run's trials started.

The journal keeps what was expected of each trial. The error of these predictions says how far off
the model may be elsewhere; the residuals of trials that it was fitted to do not.
"""

from __future__ import annotations

import numpy as np

from analysis.cost.model import PRIOR_LOG_SD
from analysis.prediction.residual import PRIOR_TRIALS
from analysis.run.fold import Run
from analysis.run.trial import Trial
from trainer.plan.jobs import Array

WIDEST = 2.0  # times what a model is off before any evidence: its residual at most


def foretold(run: Run) -> list[Trial]:
    """Trials that ran and whose objective was expected.

    Explorations are left out: they are where the model knows least, and none would be chosen for
    what it promises there.
    """
    return [
        t
        for t in run.trials.values()
        if t.ok and t.positive and t.expected.get("objective") and not t.explores
    ]


def errors(run: Run) -> Array:
    """Logarithms of measured over expected, of what was foretold."""
    return np.log([(t.objective or 1.0) / t.expected["objective"] for t in foretold(run)])


def residual_log_sd(run: Run, before: float) -> float:
    """Standard deviation of the model's log error: ``before`` this run, and by this run's errors.

    The earlier evidence counts as PRIOR_TRIALS trials, of this run's errors their median, so that
    disturbed trials do not widen it.
    """
    off = np.abs(errors(run))
    spread = min(1.4826 * float(np.median(off)), WIDEST * PRIOR_LOG_SD) if len(off) else 0.0
    known, new = PRIOR_TRIALS * before**2, len(off) * spread**2
    return float(np.sqrt((known + new) / (PRIOR_TRIALS + len(off))))
