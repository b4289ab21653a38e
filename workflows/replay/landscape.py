"""A landscape: recorded trials of one problem, as a space that can be searched again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from analysis import TableError
from search_spaces import SearchSpace

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    """What one recorded trial came to.

    Attributes:
        objective: nan if it failed.
        kind: as in the journal.
        result: what the proposer is told beside the objective.
    """

    objective: float
    kind: str = "ok"
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(np.isfinite(self.objective))


@dataclass(frozen=True)
class Landscape:
    """Recorded configurations of one model on one machine.

    Attributes:
        key: what distinguishes it from the others of its file.
        space: as a person would write it for this model and machine.
        answers: by canonical configuration's key, every recorded repeat.
        configs: canonical, in the file's order.
        model: identity of the model, for whoever leaves it out of a fit.
    """

    key: str
    space: SearchSpace
    configs: list[dict[str, Any]]
    answers: Mapping[Key, list[Answer]]
    model: str = ""

    @cached_property
    def medians(self) -> dict[Key, float]:
        """What each configuration that ran is worth: the median of its repeats."""
        return {
            key: float(np.median(values))
            for key, answers in self.answers.items()
            if (values := [a.objective for a in answers if a.ok])
        }

    @property
    def best(self) -> float:
        """What the best configuration is worth."""
        medians = self.medians.values()
        return max(medians) if self.space.objective.maximize else min(medians)

    def share(self, config: Mapping[str, Any]) -> float:
        """What a configuration is worth over the best, so that 1 is as good and less is worse.

        It does not depend on which of its repeats a trial was told: a search that has tried the
        best configuration has found it. 0 for one that never ran. Where the best is not positive:
        1 less the distance from it, over its size.
        """
        objective = self.medians.get(tuple(config.items()))
        if objective is None:
            return 0.0
        best, maximize = self.best, self.space.objective.maximize
        if best > 0 and objective > 0:
            return objective / best if maximize else best / objective
        behind = best - objective if maximize else objective - best
        return 1 - behind / abs(best) if best else float(behind <= 0)

    def checked(self, where: str) -> Landscape:
        """This landscape, if there is something to choose.

        Raises:
            TableError: if there is not; it names where the landscape is from.
        """
        if len(self.configs) < 2 or not self.medians:
            raise TableError(
                f"{where}: nothing to replay: needs two configurations of which one ran"
            )
        return self
