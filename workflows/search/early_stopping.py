"""Early stopping of trials that cannot come near the best any more.

The measured steps, without the warm-up, are compared with the best trial's objective in
logarithms. A trial stops when it is behind by more than ``MARGIN`` plus the root of the summed
squares of its own interval, the best's, and the difference between two runs of one configuration:
nothing within ``MARGIN`` of the best is stopped.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis import MissingMetricError, Run, Trial, noise_of
from foundation.files import is_number
from search_spaces import SearchSpace
from slurm import EarlyStop, StepLog, StepReport
from workflows.search.objectives import values_of

MARGIN = 0.05  # share of the best objective
SURE = 0.99  # of each interval, one-sided
MIN_STEPS = 2  # fewer have no spread
# Metrics whose median over a few steps does not stand for the trial.
_NOT_PER_STEP = ("peak_memory_bytes", "energy_joules", "joules_per_token", "loss", "num_nodes")


@dataclass(frozen=True)
class _Incumbent:
    """The best trial; logarithms, greater is better."""

    trial: int
    log: float
    interval: float  # half-width, from the best's own steps
    between: float  # difference that two runs of one configuration may have


class EarlyStopping:
    """Judges running trials of a space; one thread updates it, others ask it."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        # With several objectives slow trials may be on the front.
        per_step = space.objective.key.split(".")[0] not in _NOT_PER_STEP
        self._applies = space.trial.early_stop and not space.more_objectives and per_step
        # Replaced as a whole, so that threads see one or the other.
        self._incumbent: _Incumbent | None = None

    def update(self, run: Run, ended: Trial | None = None) -> None:
        """Note the best trial after the end of ``ended``; None: after any change."""
        if ended and not self._changes(ended):
            return  # comparing all trials after each one takes long
        best = run.best if self._applies else None
        if best is None or best.objective is None or best.objective <= 0:
            self._incumbent = None
            return
        noise = noise_of(run)
        self._incumbent = _Incumbent(
            trial=best.number,
            log=self._log(best.objective),
            interval=_half_interval(_own_steps(best)),
            between=_quantile(noise.repeats) * math.sqrt(2) * noise.log_sd,
        )

    def _changes(self, ended: Trial) -> bool:
        best = self._incumbent
        if best is None or ended.number == best.trial or any(a.repeat for a in ended.attempts):
            return True
        value = ended.objective
        return value is not None and value > 0 and self._log(value) > best.log

    def judge(self, config: Mapping[str, Any], steps: Sequence[StepReport]) -> EarlyStop | None:
        """Why a trial of ``config`` should stop after these steps; None while it may continue."""
        best, space = self._incumbent, self._space
        warmup = space.trial.warmup_steps
        measured = [step for step in steps if step["step"] > warmup]
        if best is None or len(measured) < MIN_STEPS:
            return None
        logs = []
        for step in measured:
            try:
                told = StepLog.result([step])
                [value] = values_of(space.objectives, space, config, told).values()
            except MissingMetricError:
                return None
            if not 0 < value < math.inf:
                return None
            logs.append(self._log(value))
        behind = best.log - statistics.fmean(logs)
        doubt = math.hypot(_half_interval(logs), best.interval, best.between)
        threshold = doubt - math.log1p(-MARGIN)
        if behind <= threshold:
            return None
        left = space.trial.steps - int(measured[-1]["step"])
        message = (
            f"stopped early: {len(measured)} steps were {math.exp(behind):.2f}x as slow as the "
            f"best, trial {best.trial} (threshold {math.exp(threshold):.2f}x)"
        )
        saved_s = max(0, left) * self._step_time_s(measured)
        return EarlyStop(message, StepLog.result(measured), saved_s)

    def _log(self, value: float) -> float:
        return math.log(value) if self._space.objective.maximize else -math.log(value)

    def _step_time_s(self, steps: Sequence[StepReport]) -> float:
        """Seconds per remaining step; 0 if the trainer is not told the number of steps."""
        reads = self._space.program.reads
        if reads is not None and "measured_steps" not in reads:
            return 0.0
        times = [t for step in steps if is_number(t := step.get("step_time_s"))]
        return statistics.median(times) if times else 0.0


def _own_steps(best: Trial) -> list[float]:
    """Logarithms of the best's measured step times; empty if its trainer gave none."""
    times = best.result.get("step_time_s")
    every = times.get("all") if isinstance(times, Mapping) else None
    if not isinstance(every, Sequence):
        return []
    return [math.log(t) for t in every if is_number(t) and t > 0]


def _half_interval(logs: Sequence[float]) -> float:
    """Half-width of the mean's interval by Student's t; 0 for too few values."""
    if len(logs) < MIN_STEPS:
        return 0.0
    return _quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))


def _quantile(freedom: float) -> float:
    from scipy.special import stdtrit  # seldom needed, and slow to import

    return float(stdtrit(freedom, SURE))
