"""What is left of a budget of node-hours, and which trials are expected to end within it.

A trial counts by its width: sixteen nodes for three minutes are as much as one node for 48.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from analysis.prediction.pricing import Pricing, price
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import SearchSpace
from workflows.search.budget import node_hours

RECENT = 50  # successes from which a trial's time is learnt


class NodeHours:
    """Watches a budget of node-hours; without a limit everything fits.

    Args:
        space: of the trials.
        limit: node-hours; None: no limit.
    """

    def __init__(self, space: SearchSpace, limit: float | None) -> None:
        self._space, self.limit = space, limit

    def left(self, run: Run, now: float) -> float:
        """Node-hours that no trial has held so far."""
        return float("inf") if self.limit is None else self.limit - node_hours(run, now)

    def affords(
        self, run: Run, now: float, started: Collection[int], config: Mapping[str, Any]
    ) -> bool:
        """Whether a trial of ``config`` is expected to end within what is left.

        Args:
            run: of which the budget is.
            now: on the journal's clock, seconds.
            started: trials that run or wait for nodes, and are to end within it as well.
            config: of the trial.
        """
        if self.limit is None:
            return True
        left_s = 3600 * self.left(run, now)
        trials = [run.trials[number] for number in started]
        configs = [config, *(trial.config for trial in trials)]
        widths = [self._space.num_nodes(c) for c in configs]
        if sum(widths) * self._space.trial.timeout_s <= left_s:
            return True  # whatever they do
        held_s = [0.0, *(now - t.running.started_t if t.running else 0.0 for t in trials)]
        expected_s = self.expected_s(run, configs)
        rest_s = [max(0.0, e - h) for e, h in zip(expected_s, held_s, strict=True)]
        return sum(w * r for w, r in zip(widths, rest_s, strict=True)) <= left_s

    def expected_s(self, run: Run, configs: Sequence[Mapping[str, Any]]) -> list[float]:
        """Seconds that trials take from start to end.

        By the cost model where it prices the space: the steps, as far off as they were so far, and
        what successes took besides. Else as long as the longest success; before any, the timeout.
        """
        timeout_s = self._space.trial.timeout_s
        done = [t for t in run.trials.values() if t.ok and not t.early and t.attempts][-RECENT:]
        predicted = self._predicted_s([*configs, *(t.config for t in done)])
        if predicted is None:
            longest_s = max((t.attempts[-1].elapsed_s for t in done), default=timeout_s)
            return [min(timeout_s, longest_s)] * len(configs)
        steps = self._space.trial.warmup_steps + self._space.trial.measured_steps
        scale, besides_s = 1.0, 0.0
        if done:
            before = predicted[len(configs) :]
            steps_s = [_step_time_s(t) or p for t, p in zip(done, before, strict=True)]
            scale = statistics.median(s / p for s, p in zip(steps_s, before, strict=True))
            besides_s = statistics.median(
                t.attempts[-1].elapsed_s - steps * s for t, s in zip(done, steps_s, strict=True)
            )
        ours = predicted[: len(configs)]
        return [min(timeout_s, max(0.0, besides_s) + steps * scale * p) for p in ours]

    def _predicted_s(self, configs: Sequence[Mapping[str, Any]]) -> list[float] | None:
        """Step times by the cost model; None where it cannot say."""
        try:
            return self._pricing.predict(configs).step_time_s.tolist() if self._pricing else None
        except ValueError:  # the cluster's facts do not suffice for one of them
            return None

    @cached_property
    def _pricing(self) -> Pricing | None:
        return price(self._space)


def _step_time_s(trial: Trial) -> float | None:
    times = trial.result.get("step_time_s")
    median = times.get("median") if isinstance(times, Mapping) else None
    return float(median) if isinstance(median, (int, float)) and median > 0 else None
