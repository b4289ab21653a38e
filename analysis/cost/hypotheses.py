"""Habits of frameworks in keeping memory: hypotheses, weighed by what its trials needed.

Habits such as the format of gradients, copies of the logits, or what recomputation keeps are facts
of a framework's record. Where nobody has written one, or the program in use differs from it, trials
tell: each that ran, failed or reported its peak is more probable under some hypotheses than others.
"""

from __future__ import annotations

import numpy as np

from search_spaces import FRAMEWORKS, Framework
from trainer.plan.jobs import Array, Mask

WRITES_SCORES = 0.3  # share of a record of before fused attention that is as the record says
NAMED = 0.95  # share of the record of a framework that has one; all others have the rest together
OTHER_CAUSES = 0.05  # share of what fits that fails all the same
NEVERTHELESS = 0.02  # of what cannot fit, share that runs: no hypothesis is quite right
LEVEL_LOG_SD = 0.1  # of all peaks together: constants are fitted only to the likely hypotheses
PEAK_LOG_SD = 0.1  # of each, beside the others
FAR_OFF = 0.5  # logarithms: a peak further off says no more than one that is so far

Hypotheses = tuple[tuple[Framework, float], ...]
"""Habits and their weights, which sum to 1; the most probable first."""


def hypotheses(named: Framework) -> Hypotheses:
    """Prior hypotheses for a framework of that record, before any trial.

    Its own record has most of the weight; without one, all records have the same, and few of those
    without fused attention are without it still.
    """
    # How layers are split over stages is no matter of memory: the named one's holds for all.
    stages = {name: getattr(named, name) for name in ("split", "counts_ends", "stage_settings")}
    # Nor do generations of one framework differ in what they keep.
    known = [f for f in FRAMEWORKS.values() if f.name != named.name]
    records = [f.with_habits(**stages) for f in known]
    others = [(one, share / len(records)) for record in records for one, share in _variants(record)]
    if named.name not in FRAMEWORKS:
        return tuple(others)
    own = _formats(named)[1:]
    rest = [(one, 0.5 / len(own)) for one in own] + [(one, 0.5 * share) for one, share in others]
    return ((named, NAMED), *((one, (1 - NAMED) * share) for one, share in rest))


def reweighed(before: Hypotheses, evidence: Array) -> Hypotheses:
    """The hypotheses after evidence: logarithms of how probable each makes it; shape (h,)."""
    logs = np.log([weight for _, weight in before]) + evidence
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    return tuple((before[i][0], float(weights[i])) for i in order)


def log_probability(fits: Array, failed: Mask, off: Array) -> float:
    """Logarithm of how probable trials are under one hypothesis.

    Args:
        fits: probability that it gives each trial to fit; shape (n,).
        failed: which of them failed for lack of memory.
        off: logarithms of predicted over measured peaks, where there are any; shape (m,).
    """
    ran = NEVERTHELESS + (1 - NEVERTHELESS - OTHER_CAUSES) * fits
    outcome = np.log(np.where(failed, 1 - ran, ran)).sum()
    if not len(off):
        return float(outcome)
    off = np.clip(off, -FAR_OFF, FAR_OFF)
    # One error common to all, and one of each: normal, with the common one integrated out.
    level, each = LEVEL_LOG_SD**2 * len(off), PEAK_LOG_SD**2
    scattered = ((off - off.mean()) ** 2).sum() / each
    common = len(off) * off.mean() ** 2 / (each + level)
    return float(outcome - 0.5 * (scattered + common))


def _variants(record: Framework) -> list[tuple[Framework, float]]:
    """Hypotheses for another framework if it is like that of a record; with shares that sum to 1.

    Records of before fused attention say how attention was computed then. What else they say of
    memory is as good as any other's.
    """
    shares = [(record, 1.0)]
    if not record.flash_attention:
        now = record.with_habits(flash_attention=True)
        shares = [(now, 1 - WRITES_SCORES), (record, WRITES_SCORES)]
    return [(one, share / len(_formats(of))) for of, share in shares for one in _formats(of)]


def _formats(framework: Framework) -> list[Framework]:
    """A framework's habits, and the same with gradients in the other format."""
    other = 2.0 if framework.gradient_bytes == 4 else 4.0
    return [framework, framework.with_habits(gradient_bytes=other)]
