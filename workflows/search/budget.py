"""When to stop starting trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.run.fold import Run
from analysis.units import counted
from search_spaces import SearchSpace
from slurm.outcome.kinds import BLAMELESS


@dataclass(frozen=True)
class Budget:
    """Limits of a whole run, over all its sessions; None: no limit.

    Attributes:
        trials, wall_time_s, node_hours: what may be spent.
        expected_gain: share of the best that another batch must be expected to add.
    """

    trials: int | None = None
    wall_time_s: float | None = None
    node_hours: float | None = None
    expected_gain: float = 0.0

    @classmethod
    def of(cls, space: SearchSpace) -> Budget:
        """What a space allows."""
        budget = space.budget
        return cls(budget.trials, budget.wall_time_s, budget.node_hours, budget.expected_gain)

    def spent(self, run: Run, now: float) -> str | None:
        """Why no further trial may start, or None while one may.

        A trial counts once however often its nodes failed; a trial that never gave an answer
        about its configuration (its nodes failed to the end) does not count.
        """
        if self.trials is not None:
            used = sum(1 for t in run.trials.values() if t.kind not in BLAMELESS)
            if used >= self.trials:
                return f"budget: {counted(self.trials, 'trial')}"
        return self.resources_spent(run, now)

    def resources_spent(self, run: Run, now: float) -> str | None:
        """Which of time and node-hours is used up; then not even a lost trial runs again."""
        if self.wall_time_s is not None and wall_time_s(run, now) >= self.wall_time_s:
            return f"budget: {self.wall_time_s:.0f} s of wall time"
        if self.node_hours is not None and node_hours(run, now) >= self.node_hours:
            return f"budget: {counted(self.node_hours, 'node-hour')}"
        return None

    def not_worth_it(self, expected: Mapping[str, float]) -> str | None:
        """Why the next trial should not start although there is budget, or None if it should.

        Args:
            expected: of the proposal; without ``gain`` nobody knows.
        """
        gain = expected.get("gain")
        if gain is None or gain >= self.expected_gain:
            return None
        return (
            f"another batch is expected to gain {100 * gain:.2g} %, less than "
            f"budget.expected_gain ({100 * self.expected_gain:.3g} %); about "
            f"{100 * expected['left']:.2g} % is left on the table"
        )


def wall_time_s(run: Run, now: float) -> float:
    """Seconds that drivers of this run have been alive, up to ``now`` if one is."""
    return run.past_sessions_s + (now - run.opened_t[-1] if run.opened_t else 0.0)


def node_hours(run: Run, now: float) -> float:
    """Node-hours that trials held, the running ones up to ``now``."""
    done = sum(t.node_seconds for t in run.trials.values())
    running = [(t.running, t) for t in run.trials.values()]
    return (done + sum((now - a.started_t) * len(a.nodes) for a, _ in running if a)) / 3600
