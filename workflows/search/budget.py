"""The budget of a run, and which trials should end within the rest of it.

A trial on sixteen nodes takes as many node-hours in 3 minutes as one on one node in 48.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analysis import Metrics, Run, StartUp, Trial
from foundation.quantities import clock_text, counted
from search_spaces import SearchSpace
from slurm import BLAMELESS
from workflows.search.stopping import DONE, Ending

if TYPE_CHECKING:
    from analysis import Pricing  # scipy: half a second

SMALL_GAINS = 3  # in a row end a search
SUCCESSES = 8  # with fewer, small gains do not end it,
LIKELY = 0.5  # if the next trial runs with at least this probability
RECENT = 50  # latest successes, from which a trial's time is estimated


@dataclass(frozen=True)
class Budget:
    """Limits of a whole run, over all sessions; None: no limit."""

    trials: int | None = None
    wall_time_s: float | None = None
    node_hours: float | None = None
    expected_gain: float = 0.0  # share of the best that another batch must be expected to add

    @classmethod
    def of(cls, space: SearchSpace) -> Budget:
        budget = space.budget
        return cls(budget.trials, budget.wall_time_s, budget.node_hours, budget.expected_gain)

    def after(self, probes: Run) -> Budget:
        """The same without the time and the node-hours that probes took."""
        left = self
        if self.wall_time_s is not None:
            left = replace(left, wall_time_s=self.wall_time_s - wall_time_s(probes, probes.last_t))
        if self.node_hours is not None:
            left = replace(left, node_hours=self.node_hours - probes.node_hours)
        return left

    def spent(self, run: Run, now: float) -> Ending | None:
        """Why no further trial may start, or None while one may.

        A trial counts once, however often its nodes failed; one whose every attempt failed for
        reasons outside its configuration does not count.
        """
        if self.trials is not None and len(run.trials) >= self.trials:
            used = sum(1 for t in run.trials.values() if t.kind not in BLAMELESS)
            if used >= self.trials:
                return Ending(f"budget: {counted(self.trials, 'trial')}", DONE, "trials")
        return self.resources_spent(run, now)

    def resources_spent(self, run: Run, now: float) -> Ending | None:
        """Why nothing may run, not even a lost trial; None while time and node-hours are left."""
        if self.wall_time_s is not None and wall_time_s(run, now) >= self.wall_time_s:
            return Ending(f"budget: {self.wall_time_s:.0f} s of wall time", DONE, "wall_time")
        if self.node_hours is not None and node_hours(run, now) >= self.node_hours:
            return Ending(f"budget: {counted(self.node_hours, 'node-hour')}", DONE, "node_hours")
        return None

    def not_worth_it(self, expected: Mapping[str, float], run: Run) -> Ending | None:
        """Why the next trial should not start although there is budget, or None if it should.

        One small expected gain may change with the next trial: only several in a row end a
        search, and only after enough successes, unless the next trial is unlikely to run. A
        missing ``gain`` counts as large.
        """
        before = [t.expected for t in run.trials.values() if not t.explores][1 - SMALL_GAINS :]
        gains = [e.get("gain", math.inf) for e in [*before, expected]]
        few = sum(t.ok for t in run.trials.values()) < SUCCESSES
        early = few and expected.get("fits", 1.0) >= LIKELY
        if early or len(gains) < SMALL_GAINS or max(gains) >= self.expected_gain:
            return None
        reason = (
            f"another batch is expected to gain {100 * gains[-1]:.2g} %, less than "
            f"budget.expected_gain ({100 * self.expected_gain:.3g} %); "
            f"all untried configurations, {100 * expected['left']:.2g} %"
        )
        return Ending(reason, DONE, "expected_gain")


def wall_time_s(run: Run, now: float) -> float:
    """Seconds that drivers of this run have been alive, up to ``now`` if one still is."""
    return run.search_s(now) if run.opened_t else 0.0


def node_hours(run: Run, now: float) -> float:
    """Node-hours that trials have held, the running ones up to ``now``."""
    done = sum(t.node_seconds for t in run.trials.values())
    running = [attempt for t in run.trials.values() if (attempt := t.running)]
    return (done + sum((now - a.started_t) * len(a.nodes) for a in running)) / 3600


class NodeHours:
    """A budget of node-hours; ``limit`` None: everything fits."""

    def __init__(self, space: SearchSpace, limit: float | None) -> None:
        self._space, self.limit = space, limit

    def left(self, run: Run, now: float) -> float:
        """Node-hours that no trial has held so far."""
        return math.inf if self.limit is None else self.limit - node_hours(run, now)

    def affords(
        self, run: Run, now: float, started: Collection[int], config: Mapping[str, Any]
    ) -> bool:
        """Whether a trial of ``config`` should end within the node-hours left.

        The ``started`` trials, which run or wait for nodes, have to end within them as well.
        ``now`` is on the journal's clock, seconds.
        """
        if self.limit is None:
            return True
        left_s = 3600 * self.left(run, now)
        trials = [run.trials[number] for number in started]
        configs = [config, *(trial.config for trial in trials)]
        widths = [self._space.num_nodes(c) for c in configs]
        if sum(widths) * self._space.trial.timeout_s <= left_s:
            return True  # even if all of them time out
        held_s = [0.0, *(now - t.running.started_t if t.running else 0.0 for t in trials)]
        expected_s = self.expected_s(run, configs)
        rest_s = [max(0.0, e - h) for e, h in zip(expected_s, held_s, strict=True)]
        return sum(w * r for w, r in zip(widths, rest_s, strict=True)) <= left_s

    def expected_s(self, run: Run, configs: Sequence[Mapping[str, Any]]) -> list[float]:
        """Expected seconds of trials from start to end.

        If the cost model prices the space: its step times, corrected by the median ratio so far,
        plus the start-up time of successes by their number of nodes. Else the longest success's
        time; before any, the timeout.
        """
        timeout_s = self._space.trial.timeout_s
        done = [(t, m) for t in run.trials.values() if t.ok and (m := t.measured)][-RECENT:]
        predicted = self._predicted_s([*configs, *(t.config for t, _ in done)])
        if predicted is None:
            longest_s = max((measured.elapsed_s for _, measured in done), default=timeout_s)
            return [min(timeout_s, longest_s)] * len(configs)
        steps = self._space.trial.steps
        scale, besides = 1.0, None
        if done:
            before = predicted[len(configs) :]
            steps_s = [_step_time_s(t) or p for (t, _), p in zip(done, before, strict=True)]
            scale = statistics.median(s / p for s, p in zip(steps_s, before, strict=True))
            besides = StartUp.through(
                (len(measured.nodes), measured.elapsed_s - steps * s)
                for (_, measured), s in zip(done, steps_s, strict=True)
            )
        starts_s = [besides.seconds(self._space.num_nodes(c)) if besides else 0.0 for c in configs]
        ours = zip(starts_s, predicted[: len(configs)], strict=True)
        return [min(timeout_s, start_s + steps * scale * p) for start_s, p in ours]

    def expected_texts(self, run: Run, configs: Sequence[Mapping[str, Any]]) -> list[str]:
        """The expected seconds as text; ``?`` where only the timeout is known."""
        timeout_s, expected_s = self._space.trial.timeout_s, self.expected_s(run, configs)
        return ["?" if each >= timeout_s else clock_text(each) for each in expected_s]

    def _predicted_s(self, configs: Sequence[Mapping[str, Any]]) -> list[float] | None:
        """Step times by the cost model; None if it cannot price them."""
        try:
            return self._pricing.predict(configs).step_time_s.tolist() if self._pricing else None
        except ValueError:  # the cluster's facts do not suffice for one of them
            return None

    @cached_property
    def _pricing(self) -> Pricing | None:
        from analysis import Pricing

        return Pricing.of(self._space)


def _step_time_s(trial: Trial) -> float | None:
    median = Metrics(trial.result).get("step_time_s.median")
    return float(median) if median and median > 0 else None
