"""The trials of a run that tell the cost model most, where there are many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.prediction.pricing import Pricing
from analysis.run.trial import Trial

FAILURES = 100  # for lack of memory, that calibrate a model
SUCCESSES = 2_000  # likewise, of which each costs 0.3 ms


def telling(pricing: Pricing, trials: Sequence[Trial]) -> list[Trial]:
    """The trials that calibrate the cost model: all successes, and failures near the border.

    A failure for lack of memory says that the border lies below what it needs; those that need
    least by the model say it all. Of more than ``SUCCESSES`` successes some, evenly over the run.
    """
    done = [t for t in trials if t.ok]
    failed = [t for t in pricing.teaching(trials) if not t.ok]
    if len(done) > SUCCESSES:
        done = [done[row] for row in np.linspace(0, len(done) - 1, SUCCESSES).astype(int)]
    if len(failed) > FAILURES:
        need = pricing.model.reported_peak_bytes(pricing.jobs_of([t.config for t in failed]))
        failed = [failed[row] for row in np.argsort(need, kind="stable")[:FAILURES]]
    chosen = {t.number for t in (*done, *failed)}
    return [t for t in trials if t.number in chosen]
