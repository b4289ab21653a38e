"""Effects of one parameter, by measured trials that differ in it alone.

No model is involved. Trials with the same global batch may also differ in ``gas``, which then
follows from the other parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.finalists import FINAL_WEIGHT, noise_of
from analysis.prediction.pricing import Pricing
from analysis.report.encoding import place
from analysis.run.fold import Run
from analysis.run.trial import Trial

FOLLOWS = "gas"  # of a global batch and the other parameters
BEYOND = 2.0  # standard deviations from which a difference is not due to chance


@dataclass(frozen=True)
class OneChange:
    """A change of one parameter and what it did, in every pair of trials that shows it."""

    parameter: str
    before: Any  # its smaller value
    after: Any
    shares: tuple[float, ...]  # by which the objective grew with the change, in each pair
    trials: tuple[tuple[int, int], ...]  # numbers of both trials of each pair
    noise: float  # standard deviation of such a share, by chance alone

    @property
    def middle(self) -> float:
        return float(np.median(self.shares))

    @property
    def by_chance(self) -> bool:
        """Whether runs of one configuration may differ as much."""
        return bool(abs(self.middle) < BEYOND * self.noise / np.sqrt(len(self.shares)))


def one_changes(run: Run, pricing: Pricing | None) -> list[OneChange]:
    """Changes of one parameter that were measured, those that mattered most first."""
    done = [t for t in run.trials.values() if t.ok and t.positive and not t.stopped_early]
    batches: Sequence[float] = [0.0] * len(done)
    if pricing is not None and done:
        batches = pricing.jobs_of([t.config for t in done]).global_batch.tolist()
    found: dict[tuple[str, ...], list[tuple[Trial, Trial]]] = defaultdict(list)
    for name in dict.fromkeys(name for trial in done for name in trial.config):
        for pair in _pairs(name, done, batches, pricing is not None):
            found[(name, *(repr(trial.config.get(name)) for trial in pair))].append(pair)
    noise = float(np.sqrt(2) * noise_of(run, FINAL_WEIGHT).log_sd)
    changes = [
        OneChange(
            name,
            pairs[0][0].config.get(name),
            pairs[0][1].config.get(name),
            tuple((b.objective or 0.0) / (a.objective or 1.0) - 1 for a, b in pairs),
            tuple((a.number, b.number) for a, b in pairs),
            noise,
        )
        for (name, *_), pairs in found.items()
    ]
    return sorted(changes, key=lambda change: (change.by_chance, -abs(change.middle)))


def _pairs(
    name: str, trials: Sequence[Trial], batches: Sequence[float], batch_known: bool
) -> Iterator[tuple[Trial, Trial]]:
    """Pairs of neighbouring values of a parameter with all others alike."""
    alike: dict[Any, dict[str, Trial]] = defaultdict(dict)
    for trial, batch in zip(trials, batches, strict=True):
        follows = batch_known and name != FOLLOWS
        apart = {name, FOLLOWS} if follows else {name}
        rest = sorted((n, repr(v)) for n, v in trial.config.items() if n not in apart)
        key = (batch if follows else None, *rest)
        alike[key].setdefault(repr(trial.config.get(name)), trial)
    for group in alike.values():
        yield from pairwise(sorted(group.values(), key=lambda t: place(t.config.get(name))))
