"""The probability that a job fits into a GPU's memory, and how measured runs sharpen it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from analysis.cost.constants import STEP, fit, integrated, log_sds, names
from analysis.cost.hypotheses import Doubts, Hypothesis
from analysis.cost.memory import MemoryConstants, MemoryParts, memory, reported
from analysis.cost.stages import refused
from search_spaces import Framework
from trainer.plan.jobs import Array, Jobs, Mask

PRIOR_LOG_SD = 0.06  # of the memory that a job needs, before any fit
PEAK_LOG_SD = {"allocated": 0.03, "reserved": 0.12, "device": 0.06}
"""Deviation of reported peaks, by the counter: the allocator's free blocks vary by chance."""
BOUND_LOG_SD = 0.04  # of the least memory that a job needs
NEEDS_LIMIT = 0.8  # a failure predicted to need less of the limit was not for lack of memory
SETTLED, OPEN = 0.9, 0.8  # least probability of a habit settled by trials; its most before them
NEAR = 0.25  # log distance from the limit beyond which the constants' uncertainty is ignored
# Free share of a device's memory below which torch's allocator returns free blocks and requests
# others in every step, and DeepSpeed warns of "high memory pressure" and "cache flushes".
ROOM = 0.08
OTHER_CAUSES = 0.05  # share of jobs that fit and yet fail
NEVERTHELESS = 0.02  # share of jobs that cannot fit and yet run: no hypothesis is quite right
FACTOR_LOG_SD = {"allocated": 0.03, "reserved": 0.06, "device": 0.04}
"""Deviation of peaks by the right habits, where the constants are integrated out."""
SAMPLES = 128  # draws of the constants over which outcomes are averaged

Evidence = Callable[[Framework], tuple[float, MemoryConstants]]
"""Log marginal likelihood of the trials under a framework's habits, and the constants' mean."""


@dataclass(frozen=True)
class Measurements:
    """Measured trials, one per job."""

    jobs: Jobs
    step_time_s: Array  # nan where unknown
    peak_bytes: Array  # as the framework reports it; nan where unknown
    out_of_memory: Mask  # failed for lack of memory, or for an unknown reason

    @cached_property
    def timed(self) -> tuple[Jobs, Array]:
        """Jobs with a step time, and its logarithm."""
        known = np.isfinite(self.step_time_s) & (self.step_time_s > 0)
        return self.jobs[known], np.log(self.step_time_s[known])

    @cached_property
    def peaks(self) -> tuple[Jobs, Array]:
        """Jobs that ran with a peak of memory, and its logarithm."""
        known = np.isfinite(self.peak_bytes) & ~self.out_of_memory
        return self.jobs[known], np.log(self.peak_bytes[known])

    def of_engine(self, number: int) -> Measurements:
        """The measurements of one engine's jobs."""
        rows = self.jobs.options.engine == number
        return Measurements(*(getattr(self, name)[rows] for name in names(Measurements)))


@dataclass(frozen=True)
class MemoryModel:
    """The memory formulas' constants and habits, and their uncertainty."""

    constants: MemoryConstants = field(default_factory=MemoryConstants)  # of the formulas
    covariance: Array | None = None  # of their logarithms; None: by their spreads, before evidence
    log_sd: float = PRIOR_LOG_SD  # standard deviation of the logarithm of the memory needed
    misfit: float = 0.0  # log factor by which all jobs exceed the formulas, whatever the constants
    doubts: Doubts | None = None  # prior of the framework's habits; None: its record holds
    # their posterior, the most probable first
    habits: tuple[Hypothesis[MemoryConstants], ...] = ()
    evidence: Evidence | None = field(default=None, compare=False)  # by which they are weighed

    def supposing(self, doubts: Doubts) -> MemoryModel:
        """The model of a framework whose habits may differ from its record."""
        return self._after(doubts, lambda _: (0.0, self.constants))

    def _after(self, doubts: Doubts, evidence: Evidence) -> MemoryModel:
        return replace(self, doubts=doubts, habits=doubts.weighed(evidence), evidence=evidence)

    @cached_property
    def cautious(self) -> MemoryModel:
        """The model that rules jobs out, after the same evidence: only those that no plausible
        hypothesis lets run; see ``MAY_HAVE``.
        """
        if self.doubts is None or self.evidence is None:
            return self
        return self._after(self.doubts.for_ruling_out(), self.evidence)

    @property
    def settled(self) -> dict[str, tuple[Any, float]]:
        """Habits that trials have settled: each one's value and its probability."""
        before = self.supposing(self.doubts).habits if self.doubts else ()
        found: dict[str, tuple[Any, float]] = {}
        for name in self.doubts.values if self.doubts else ():
            now, was = _weights(self.habits, name), _weights(before, name)
            best = max(now, key=lambda value: now[value])
            if now[best] >= SETTLED and was.get(best, 0.0) <= OPEN:
                found[name] = best, now[best]
        return found

    def drawn(self, framework: Framework, rng: np.random.Generator) -> MemoryModel:
        """The model with habits and constants drawn from their distribution."""
        habits = self.habits or (Hypothesis(framework, 1.0, self.constants),)
        weights = np.array([each.weight for each in habits])
        one = habits[rng.choice(len(habits), p=weights / weights.sum())]
        covariance = self.constants.covariance(self.covariance)
        logs = rng.multivariate_normal(one.rest.logs(), covariance, method="eigh")
        constants = MemoryConstants.from_logs(logs)
        return replace(self, constants=constants, habits=(replace(one, weight=1.0),))

    def parts(self, jobs: Jobs, framework: Framework) -> MemoryParts:
        """Memory of the fullest rank in parts, by the most probable habits; bytes."""
        return memory(jobs, self.likely(framework), self.constants).times(np.exp(self.misfit))

    def peak_bytes(self, jobs: Jobs, framework: Framework) -> Array:
        """The peak that the framework would report, by the most probable habits."""
        peaks, _ = reported(jobs, self.likely(framework), self.constants)
        return np.asarray(peaks * np.exp(self.misfit))

    def fits(self, jobs: Jobs, framework: Framework, limit_bytes: float) -> Array:
        """Probability that jobs run within a device's memory; 0 for what a framework refuses."""
        return self.chances(jobs, framework, limit_bytes)["fits"]

    def chances(self, jobs: Jobs, framework: Framework, limit_bytes: float) -> dict[str, Array]:
        """Probabilities that jobs run (``fits``), and that they then have no ROOM left (``full``).

        The constants' uncertainty under the most probable habits stands for that under all. To rule
        jobs out, the hypothesis that needs least memory counts, however improbable.
        """
        from scipy.special import ndtr  # slow to import, and a space is checked without it

        likely = self.habits or (Hypothesis(framework, 1.0, self.constants),)
        needed = np.stack([memory(jobs, one.framework, one.rest).total for one in likely])
        weights = np.array([one.weight for one in likely])
        if self.doubts and self.doubts.cautious:
            needed, weights = needed.min(axis=0, keepdims=True), np.ones(1)
        margin = np.log(limit_bytes / needed) - self.misfit
        deviation = np.full(len(jobs), self.log_sd)
        near = (np.abs(margin) < NEAR).any(axis=0)
        if near.any():
            close = jobs[near]
            sides = log_sds(
                self.constants,
                self.constants.covariance(self.covariance),
                lambda c: np.log(memory(close, likely[0].framework, c).total),
            )
            deviation[near] = np.hypot(self.log_sd, np.maximum(*sides))
        fits = weights @ ndtr(margin / deviation)
        roomy = weights @ ndtr((margin + np.log1p(-ROOM)) / deviation)
        full = 1 - roomy / np.maximum(fits, np.finfo(float).tiny)
        return {"fits": np.where(refused(jobs, framework), 0.0, fits), "full": np.maximum(full, 0)}

    def likely(self, framework: Framework) -> Framework:
        return self.habits[0].framework if self.habits else framework

    def calibrated(
        self, measurements: Measurements, framework: Framework, limit_bytes: float
    ) -> MemoryModel:
        """The model after measured trials.

        Reported peaks give residuals. Out-of-memory failures say that a job needs more than the
        limit, all other rows that it needs less. A failure whose predicted need is far below the
        limit had another cause and is ignored.
        """
        jobs, out_of_memory = measurements.jobs, measurements.out_of_memory
        refuses = refused(jobs, framework)
        if self.doubts is not None:
            peaks, ended = measurements.peaks, (jobs[~refuses], out_of_memory[~refuses])
            evidence = partial(self.learnt, peaks=peaks, outcomes=ended, limit_bytes=limit_bytes)
            self = self._after(self.doubts, evidence)
            framework = self.habits[0].framework
        needed = self.parts(jobs, framework).total
        believed = out_of_memory & (needed > NEEDS_LIMIT * limit_bytes) & ~refuses
        rows = believed | ~out_of_memory
        if not rows.any():
            return self
        bounded, failed = jobs[rows], believed[rows]
        known, measured = measurements.peaks
        noise = PEAK_LOG_SD[framework.reports]

        def residuals(constants: MemoryConstants) -> Array:
            over = np.log(memory(bounded, framework, constants).total / limit_bytes)
            bounds = np.where(failed, np.minimum(over, 0.0), np.maximum(over, 0.0))
            predicted, held = reported(known, framework, constants)
            beyond = np.maximum(np.log(held) - measured, 0.0)
            sure = np.concatenate([bounds, beyond], axis=-1) * (noise / BOUND_LOG_SD)
            return np.concatenate([np.log(predicted) - measured, sure], axis=-1)

        prior = self.constants.transferred(self.covariance)
        found = fit(self.constants, residuals, noise, covariance=prior)
        if self.habits:
            first = replace(self.habits[0], rest=found.constants)
            self = replace(self, habits=(first, *self.habits[1:]))
        misfit = self.misfit
        if len(measured):  # an error that the constants leave in all peaks is the formulas'
            left = misfit + float(np.median(residuals(found.constants)[: len(measured)]))
            misfit -= left / (1 + noise**2 / (len(measured) * self.log_sd**2))
        return replace(self, constants=found.constants, covariance=found.covariance, misfit=misfit)

    def learnt(
        self,
        framework: Framework,
        peaks: tuple[Jobs, Array],
        outcomes: tuple[Jobs, Mask],
        limit_bytes: float,
    ) -> tuple[float, MemoryConstants]:
        """Log marginal likelihood of trials under some habits, and the constants' posterior mean.

        Log memory is treated as linear in the log constants, so that these are normal given the
        peaks: they are integrated out together with the scale of the formulas' error. Outcomes are
        averaged over draws from this posterior. All trials share the constants: what one of them
        explains by a constant, the others need not explain by a habit.

        Args:
            peaks: jobs with a reported peak, and its logarithm.
            outcomes: jobs that ran or failed, and which of them failed.
        """
        known, measured = peaks
        bounded, failed = outcomes
        from scipy.special import ndtr  # slow to import

        def over(constants: MemoryConstants) -> Array:
            return np.log(reported(known, framework, constants)[0]) - measured

        noise = FACTOR_LOG_SD[framework.reports]
        prior = self.constants.transferred(self.covariance)
        log, mean, covariance = integrated(self.constants, prior, over, noise)
        if len(failed):
            normal = np.random.default_rng(0).standard_normal((SAMPLES, len(mean)))
            root = np.linalg.cholesky(covariance)
            drawn = np.vstack([mean, mean + STEP * root.T])
            needed = memory(bounded, framework, MemoryConstants.from_logs(drawn)).total
            past = np.log(needed / limit_bytes)
            past = past[0] + normal @ (past[1:] - past[0]) / STEP
            ran = NEVERTHELESS + (1 - NEVERTHELESS - OTHER_CAUSES) * ndtr(-past / self.log_sd)
            each = np.log(np.where(failed, 1 - ran, ran)).sum(axis=1)
            whole = float(np.logaddexp.reduce(each))
            log += whole - float(np.log(SAMPLES))
            mean = mean + root @ (np.exp(each - whole) @ normal)
        return log, MemoryConstants.from_logs(mean)


def _weights(habits: Sequence[Hypothesis[MemoryConstants]], name: str) -> dict[Any, float]:
    """Probability of each value of a habit."""
    weights: dict[Any, float] = {}
    for one in habits:
        value = getattr(one.framework, name)
        weights[value] = weights.get(value, 0.0) + one.weight
    return weights
