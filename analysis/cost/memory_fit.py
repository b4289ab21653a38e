"""The probability that a job fits into a GPU's memory, and how measured runs sharpen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from analysis.cost.constants import TRANSFER, fit, log_sd
from analysis.cost.hypotheses import Hypotheses, log_probability, reweighed
from analysis.cost.memory import MemoryConstants, MemoryParts, memory, reported
from analysis.cost.stages import refused
from search_spaces import Framework
from trainer.plan.jobs import Array, Jobs, Mask

PRIOR_LOG_SD = 0.06  # of the memory that a job needs, where nothing was fitted
PEAK_LOG_SD = {"allocated": 0.03, "reserved": 0.12, "device": 0.06}
"""In reported peaks, by the counter: the allocator's free blocks are a matter of chance."""
SUPPOSED_LOG_SD = 0.09
"""PRIOR_LOG_SD of other trainers than the built-in one: the priors are off by 4 to 10 % from the
peaks of BLOOM and torchtitan."""
BOUND_LOG_SD = 0.04  # in what a job needs at least
NEEDS_LIMIT = 0.8  # a failure predicted to need less of the limit was not for lack of memory
NEGLIGIBLE = 0.005  # weight of habits that say nothing of whether a job fits
NEAR = 0.25  # logarithms from the limit, beyond which no uncertainty of constants matters


@dataclass(frozen=True)
class MemoryModel:
    """Memory with constants, and how sure of it.

    Attributes:
        constants: of the formulas.
        covariance: of their logarithms; None before any evidence, when it is their spreads'.
        log_sd: standard deviation of the logarithm of the memory needed.
        habits: what the framework may keep instead of what its record says; without any, the
            record holds.
    """

    constants: MemoryConstants = field(default_factory=MemoryConstants)
    covariance: Array | None = None
    log_sd: float = PRIOR_LOG_SD
    habits: Hypotheses = ()

    def supposing(self, habits: Hypotheses) -> MemoryModel:
        """The model of a framework that may keep something else than its record says."""
        return replace(self, habits=habits, log_sd=max(self.log_sd, SUPPOSED_LOG_SD))

    def parts(self, jobs: Jobs, framework: Framework) -> MemoryParts:
        """Memory of the fullest rank, in parts; bytes. By the most probable habits."""
        return memory(jobs, self._likely(framework), self.constants)

    def peak_bytes(self, jobs: Jobs, framework: Framework) -> Array:
        """The peak that the framework would report, by the most probable habits."""
        return reported(jobs, self._likely(framework), self.constants)[0]

    def fits(self, jobs: Jobs, framework: Framework, limit_bytes: float) -> Array:
        """Probability that jobs run within a device's memory; 0 for what a framework refuses."""
        likely = [(h, w) for h, w in self.habits or ((framework, 1.0),) if w > NEGLIGIBLE]
        each = self._fits(jobs, [habits for habits, _ in likely], limit_bytes)
        weights = np.array([weight for _, weight in likely])
        return np.asarray(weights @ each / weights.sum())

    def _likely(self, framework: Framework) -> Framework:
        return self.habits[0][0] if self.habits else framework

    def _fits(self, jobs: Jobs, habits: Sequence[Framework], limit_bytes: float) -> Array:
        """The same by each of several frameworks' habits, the likeliest first; shape (h, n).

        How much the constants leave open is taken from the first for all.
        """
        from scipy.special import ndtr  # slow to import, and a space is checked without it

        needed = np.stack([memory(jobs, one, self.constants).total for one in habits])
        margin = np.log(limit_bytes / needed)
        deviation = np.full(len(jobs), self.log_sd)
        near = (np.abs(margin) < NEAR).any(axis=0)
        if near.any():
            close = jobs[near]
            spreads = MemoryConstants.spreads()
            spread = log_sd(
                self.constants,
                np.diag(spreads**2) if self.covariance is None else self.covariance,
                lambda c: np.log(memory(close, habits[0], c).total),
            )
            deviation[near] = np.hypot(self.log_sd, spread)
        never = np.stack([refused(jobs, one) for one in habits])
        return np.where(never, 0.0, ndtr(margin / deviation))

    def calibrated(
        self,
        jobs: Jobs,
        framework: Framework,
        peak_bytes: Array,
        out_of_memory: Mask,
        limit_bytes: float,
    ) -> MemoryModel:
        """The model after evidence.

        Reported peaks are residuals, failures for memory say that a job needs more than there is,
        all other rows that it needs less. A failure whose predicted need is far below the limit
        had another cause and says nothing.

        Args:
            jobs: what was run, to the end or until memory was short.
            framework: whose.
            peak_bytes: as the framework reports it; nan where unknown.
            out_of_memory: failed for lack of memory, or for a reason unknown.
            limit_bytes: memory of the device.
        """
        if self.habits:
            weighed = self._weighed(jobs, peak_bytes, out_of_memory, limit_bytes)
            framework = weighed[0][0]
            self = replace(self, habits=weighed)
        needed = self.parts(jobs, framework).total
        believed = out_of_memory & (needed > NEEDS_LIMIT * limit_bytes) & ~refused(jobs, framework)
        measured = np.isfinite(peak_bytes) & ~out_of_memory
        rows = believed | ~out_of_memory
        if not rows.any():
            return self
        failed, peaks = believed[rows], np.log(peak_bytes[measured])
        bounded, known = jobs[rows], jobs[measured]

        noise = PEAK_LOG_SD[framework.reports]

        def residuals(constants: MemoryConstants) -> Array:
            over = np.log(memory(bounded, framework, constants).total / limit_bytes)
            bounds = np.where(failed, np.minimum(over, 0.0), np.maximum(over, 0.0))
            predicted, held = reported(known, framework, constants)
            beyond = np.maximum(np.log(held) - peaks, 0.0)
            sure = np.concatenate([bounds, beyond], axis=-1) * (noise / BOUND_LOG_SD)
            return np.concatenate([np.log(predicted) - peaks, sure], axis=-1)

        learnt = None
        if self.covariance is not None:
            first = np.diag(MemoryConstants.spreads() ** -2.0)
            learnt = np.linalg.inv(first + np.linalg.inv(TRANSFER**2 * self.covariance))
        found = fit(self.constants, residuals, noise, covariance=learnt)
        return replace(self, constants=found.constants, covariance=found.covariance)

    def _weighed(
        self, jobs: Jobs, peak_bytes: Array, out_of_memory: Mask, limit_bytes: float
    ) -> Hypotheses:
        """The habits after evidence; see :meth:`calibrated`."""
        measured = np.isfinite(peak_bytes) & ~out_of_memory
        known, peaks = jobs[measured], np.log(peak_bytes[measured])
        frameworks = [habits for habits, _ in self.habits]
        evidence = [
            log_probability(
                fits,
                out_of_memory,
                np.log(reported(known, habits, self.constants)[0]) - peaks,
            )
            for habits, fits in zip(
                frameworks, self._fits(jobs, frameworks, limit_bytes), strict=True
            )
        ]
        return reweighed(self.habits, np.array(evidence))
