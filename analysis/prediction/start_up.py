"""What a trial takes from its launch to its first step, by the nodes it has.

Processes find each other, communicators come up, weights are made: on some machines that grows with
every node (6.3 s a node on Aurora, from ``deepspeed.initialize`` alone), on others hardly.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from analysis.metrics import metric
from analysis.run.trial import Trial
from search_spaces import SearchSpace

START_UP_S, CPU_START_UP_S = 60.0, 5.0
PER_NODE_S = 6.3  # how much a node may add: Aurora, published by its centre (2024)
SPREAD = 0.25  # of start-ups at one number of nodes, as a share
MOST_SAID = 3  # trials of one number of nodes, of which more say nothing more of the slope


@dataclass(frozen=True)
class StartUp:
    """A line: seconds whatever the width, and more for every node."""

    base_s: float
    per_node_s: float = 0.0

    def seconds(self, num_nodes: Any) -> Any:
        """From launch to first step; of a number of nodes, or of a column of them."""
        return self.base_s + self.per_node_s * num_nodes

    @classmethod
    def expected(cls, space: SearchSpace) -> Self:
        """Before any trial, by experience."""
        builtin = space.trainer.builtin
        return cls(
            CPU_START_UP_S if builtin is not None and builtin.device == "cpu" else START_UP_S
        )

    @classmethod
    def learned(cls, space: SearchSpace, trials: Iterable[Trial]) -> Self:
        """From what successes took besides their steps; without any, what is expected."""
        return cls.through(_besides_s(space, trials)) or cls.expected(space)

    @classmethod
    def through(cls, seen: Iterable[tuple[int, float]]) -> Self | None:
        """The line through start-ups, each a number of nodes and its seconds; None without any.

        Every number of nodes counts by the median of its trials. The line is drawn towards a level
        one as far as start-ups scatter, which more trials of the same widths do not mend: one and
        two nodes say little of sixty-four.
        """
        by_nodes: dict[int, list[float]] = {}
        for nodes, seconds in seen:
            by_nodes.setdefault(nodes, []).append(max(0.0, seconds))
        if not by_nodes:
            return None
        rows = [
            (n, statistics.median(every), min(len(every), MOST_SAID))
            for n, every in by_nodes.items()
        ]
        count = sum(weight for *_, weight in rows)
        mean_nodes = sum(weight * n for n, _, weight in rows) / count
        mean_s = sum(weight * s for _, s, weight in rows) / count
        rise = sum(weight * (n - mean_nodes) * (s - mean_s) for n, s, weight in rows)
        width = sum(weight * (n - mean_nodes) ** 2 for n, _, weight in rows)
        doubt = (SPREAD * mean_s / PER_NODE_S) ** 2
        slope = max(0.0, rise / (width + doubt)) if rise else 0.0
        slope = min(slope, *(s / n for n, s, _ in rows if n)) if slope else slope  # none before it
        base = statistics.median(s - slope * n for n, every in by_nodes.items() for s in every)
        return cls(max(0.0, base), slope)


def starts_longer_than_it_runs(space: SearchSpace, trials: Iterable[Trial]) -> bool:
    """Whether the first success to end that was measured whole took longer to start than to step.

    The first alone: where later ones share a launch, they start sooner.
    """
    steps = space.trial.warmup_steps + space.trial.measured_steps
    for trial in sorted(trials, key=lambda trial: trial.ended_t or 0.0):
        if of_first := list(_besides_s(space, [trial])):
            [(_, start_s)] = of_first
            return start_s > steps * float(metric(trial.result, "step_time_s.median") or 0.0)
    return False


def _besides_s(space: SearchSpace, trials: Iterable[Trial]) -> Iterator[tuple[int, float]]:
    """Nodes, and seconds that were no steps, of successes that were measured to the end."""
    steps = space.trial.warmup_steps + space.trial.measured_steps
    for trial in trials:
        step_s, whole = metric(trial.result, "step_time_s.median"), trial.measured
        if trial.ok and whole and step_s and step_s > 0:
            yield len(whole.nodes), whole.elapsed_s - steps * float(step_s)
