"""Start-up time of a trial, from its launch to its first step, by number of nodes.

Processes rendezvous, communicators are created, weights initialized: on some machines this grows
with every node (6.3 s per node on Aurora, from ``deepspeed.initialize`` alone), on others hardly.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from analysis.metrics import Metrics
from analysis.run.trial import Trial
from search_spaces import SearchSpace
from slurm import Kind

START_UP_S, CPU_START_UP_S = 60.0, 5.0
PER_NODE_S = 6.3  # how much a node may add: Aurora, published by its centre (2024)
SPREAD = 0.25  # relative standard deviation of start-ups at one number of nodes
GUESSED_SPREAD = 0.5  # of the logarithm, before any trial
PER_DOUBLING = 0.35  # log deviation added per doubling beyond the widest start, over the number of
# widths measured: half of a factor of 2 after one; on Aurora 0.12 after two and 0.09 after three
MOST_SAID = 3  # trials at one number of nodes, beyond which more do not inform the slope


@dataclass(frozen=True)
class StartUp:
    """Start-up time as a line: a constant, and seconds for every node."""

    base_s: float
    per_node_s: float = 0.0
    widest: int = 0  # the most nodes on which a trial started; 0 before any
    widths: int = 0  # different numbers of nodes on which trials started
    # nodes and seconds of trials that timed out before their first step; a lower bound for trials
    # on as many nodes or more
    waited: tuple[tuple[int, float], ...] = ()

    def seconds(self, num_nodes: Any) -> Any:
        """Median from launch to first step, for a number of nodes or a column of them."""
        return np.maximum(self.base_s + self.per_node_s * num_nodes, self._least_s(num_nodes))

    def log_sd(self, num_nodes: Any) -> Any:
        """Standard deviation of its logarithm; larger beyond the widest trial that started."""
        if not self.widest:
            line = GUESSED_SPREAD
        else:
            further = np.log2(np.maximum(num_nodes, self.widest) / self.widest)
            line = np.hypot(SPREAD, PER_DOUBLING / self.widths * further)
        return np.where(self._least_s(num_nodes) > 0, SPREAD, line)

    def _least_s(self, num_nodes: Any) -> Any:
        """Lower bound by trials that timed out while starting: the longest, plus a spread for each.

        The next trial starts within that time with 20 % probability after one of them, 5 % after
        two.
        """
        least_s = np.zeros(np.shape(num_nodes))
        for nodes, seconds in self.waited:
            alike = sum(1 for others, _ in self.waited if others <= nodes)
            bound_s = seconds * (1 + SPREAD * alike)
            least_s = np.maximum(least_s, np.where(np.asarray(num_nodes) >= nodes, bound_s, 0.0))
        return least_s

    @classmethod
    def expected(cls, space: SearchSpace) -> Self:
        """The prior, before any trial."""
        builtin = space.trainer.builtin
        return cls(
            CPU_START_UP_S if builtin is not None and builtin.device == "cpu" else START_UP_S
        )

    @classmethod
    def learned(cls, space: SearchSpace, trials: Iterable[Trial]) -> Self:
        """From the time that successes took besides their steps; without any, the prior.

        Trials that timed out while starting count until one at least as wide has started sooner.
        """
        trials = list(trials)
        started = [(nodes, start_s) for nodes, start_s, _ in _took_s(space, trials)]
        line = cls.through(started) or cls.expected(space)
        waited = tuple(
            (nodes, waited_s)
            for nodes, waited_s in _waited_s(space, trials)
            if not any(n >= nodes and s < waited_s for n, s in started)
        )
        return replace(line, waited=waited)

    @classmethod
    def through(cls, seen: Iterable[tuple[int, float]]) -> Self | None:
        """The line through start-ups, each a number of nodes and its seconds; None without any.

        Every number of nodes counts by the median of its trials. The slope shrinks towards 0 by the
        scatter of start-ups, which more trials of the same widths do not reduce: one and two nodes
        say little about sixty-four.
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
        slope = min(slope, *(s / n for n, s, _ in rows if n)) if slope else slope  # no base below 0
        base = statistics.median(s - slope * n for n, every in by_nodes.items() for s in every)
        return cls(max(0.0, base), slope, max(by_nodes), len(by_nodes))

    @staticmethod
    def exceeds_steps(space: SearchSpace, trials: Iterable[Trial]) -> bool:
        """Whether the first success to end, if measured whole, took longer to start than to step.

        Only the first counts: later ones that share a launch start sooner.
        """
        in_order = sorted(trials, key=lambda trial: trial.ended_t or 0.0)
        _, start_s, steps_s = next(_took_s(space, in_order), (0, 0.0, 0.0))
        return start_s > steps_s


def _took_s(space: SearchSpace, trials: Iterable[Trial]) -> Iterator[tuple[int, float, float]]:
    """Nodes, seconds outside steps and seconds of steps, of successes measured to the end."""
    for trial in trials:
        step_s, whole = Metrics(trial.result).get("step_time_s.median"), trial.measured
        if trial.ok and whole and step_s and step_s > 0:
            steps_s = space.trial.steps * float(step_s)
            yield len(whole.nodes), whole.elapsed_s - steps_s, steps_s


def _waited_s(space: SearchSpace, trials: Sequence[Trial]) -> Iterator[tuple[int, float]]:
    """Nodes and seconds of attempts that timed out before their first step.

    Repeats do not count: their trial did start. Nothing if the trainer never reports steps.
    """
    attempts = [a for trial in trials for a in trial.attempts]
    if space.trainer.builtin is None and not any(a.steps for a in attempts):
        return
    for attempt in attempts:
        if attempt.kind == Kind.TIMEOUT and attempt.steps == 0 and not attempt.repeat:
            yield len(attempt.nodes), attempt.elapsed_s
