"""Node-hours that a search will take, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from analysis import MissingFactError, NotPricedError, Pricing, Ranking, StartUp
from foundation.quantities import counted, number
from search_spaces import SearchSpace

PRICED = 50_000  # configurations of a large space, of which the best-ranked are taken
EACH = 20  # best-ranked ones, whose mean counts if the number of trials is open


@dataclass(frozen=True)
class Estimate:
    """Cost of a search."""

    trials: int | None  # the budget's; None: open
    repeats: int  # of finalists, at most
    # if every trial runs until its timeout; of one trial if ``trials`` is None
    most_node_hours: float
    expected_node_hours: float | None  # likewise, of the best-ranked; None: without a price
    basis: str  # what is expected, or why nothing is
    limit: str = ""  # what limits ``most_node_hours``

    @classmethod
    def of(cls, space: SearchSpace) -> Self:
        """The cost of a whole search; its prices are not calibrated."""
        trials, repeats = space.budget.trials, space.finalists.max_repeats
        runs = 1 if trials is None else trials + repeats
        limit = space.budget.node_hours or np.inf
        most = runs * space.widths[-1] * space.trial.timeout_s / 3600
        expected, basis = None, ""
        try:
            each_h, start_s = _each_h(space, trials or EACH)
        except (NotPricedError, MissingFactError) as error:
            basis = f"no price: {error}"
        else:
            steps = space.trial.steps
            basis = f"the best-ranked, uncalibrated: {start_s:g} s to start, {steps} steps"
            # The leading ones are repeated; a small space may have fewer configurations.
            expected = float(each_h.sum() + repeats * each_h[0] if trials else each_h.mean())
            expected = min(expected, limit)
        by = "by budget.node_hours" if most > limit else "each until trial.timeout"
        return cls(trials, repeats, min(most, limit), expected, basis, f" ({by})")

    def text(self, nodes: int | None = None) -> str:
        """One line; with ``nodes`` also the hours on so many."""
        if self.trials is None:
            what = "each trial (budget.trials leaves their number open)"
        else:
            repeats = f" and up to {counted(self.repeats, 'repeat')}" if self.repeats else ""
            what = f"{counted(self.trials, 'trial')}{repeats}"
        most = _rough(self.most_node_hours)
        if self.expected_node_hours is None:
            return f"{what}: at most {most} node-hours{self.limit}; {self.basis}"
        about = f"about {_rough(self.expected_node_hours)} node-hours"
        if nodes and self.trials:
            about += f", {_rough(self.expected_node_hours / nodes)} h on {counted(nodes, 'node')}"
        return f"{what}: {about} ({self.basis}), at most {most}{self.limit}"

    def as_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "repeats": self.repeats,
            "node_hours_at_most": self.most_node_hours,
            "node_hours_expected": self.expected_node_hours,
            "basis": self.basis,
        }


def _rough(hours: float) -> str:
    return number(float(f"{hours:.2g}"))


def _each_h(space: SearchSpace, trials: int) -> tuple[np.ndarray, float]:
    """Expected node-hours of each of the best-ranked trials, and the first one's seconds to start.

    A trial that does not fit ends when it starts.
    """
    ranking = Ranking.of(Pricing(space), trials, PRICED)
    nodes = np.array([space.num_nodes(config) for config in ranking.configs])
    start_s = StartUp.expected(space).seconds(nodes)
    steps_s = ranking.prediction.fits * space.trial.steps * ranking.prediction.step_time_s
    each_s = np.minimum(start_s + steps_s, space.trial.timeout_s)
    return nodes * each_s / 3600, float(start_s[0])
