"""A landscape: recorded trials of one problem, as a space that can be searched again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from analysis import Metrics, MissingMetricError, TableError
from search_spaces import SearchSpace

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    objective: float  # nan if it failed
    kind: str = "ok"  # as in the journal
    # metrics besides the objective, for the policy
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(np.isfinite(self.objective))


@dataclass(frozen=True)
class Landscape:
    """Recorded configurations of one model on one machine."""

    key: str  # its name among the landscapes of its file
    space: SearchSpace  # as a person would write it for this model and machine
    configs: list[dict[str, Any]]  # canonical, in the file's order
    answers: Mapping[Key, list[Answer]]  # every recorded repeat, by canonical configuration's key
    model: str = ""  # identity of the model, for fits that leave it out

    @classmethod
    def of(
        cls,
        key: str,
        space: SearchSpace,
        recorded: Iterable[tuple[Mapping[str, Any], Answer]],
        model: str = "",
    ) -> Landscape:
        """A landscape of canonical configurations and their answers, in the file's order."""
        answers: dict[Key, list[Answer]] = {}
        for config, answer in recorded:
            answers.setdefault(tuple(config.items()), []).append(answer)
        return cls(key, space, [dict(items) for items in answers], answers, model)

    @cached_property
    def medians(self) -> dict[Key, float]:
        """The objective of each configuration that ran: the median of its repeats.

        Those within the bounds on measured values alone, where the space has some.
        """
        ran = {
            key: done
            for key, answers in self.answers.items()
            if (done := [answer for answer in answers if answer.ok])
        }
        return {
            key: float(np.median([answer.objective for answer in done]))
            for key, done in ran.items()
            if all(
                bound.excess(float(np.median([self.bounded(a)[bound.key] for a in done]))) <= 0
                for bound in self.space.subject_to
            )
        }

    def bounded(self, answer: Answer) -> dict[str, float]:
        """The metrics of an answer that have bounds; raises MissingMetricError."""
        of = Metrics(answer.result).required
        return {bound.key: of(bound.key) for bound in self.space.subject_to}

    @property
    def best(self) -> float:
        medians = self.medians.values()
        return max(medians) if self.space.objective.maximize else min(medians)

    def share(self, config: Mapping[str, Any]) -> float:
        """The objective of a configuration relative to the best: 1 is as good, less is worse.

        It is the same for all repeats: a search that has tried the best configuration has found
        it. 0 for one that never ran. If the best is not positive: 1 minus the distance from it
        over its size.
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
        """This landscape; raises TableError, with ``where``, if there is nothing to choose from."""
        within = [bound.text for bound in self.space.subject_to]
        try:
            nothing = len(self.configs) < 2 or not self.medians
        except MissingMetricError as missing:
            raise TableError(f"{where}: subject_to: {missing}") from None
        if nothing:
            raise TableError(
                f"{where}: nothing to replay: needs two configurations of which one ran"
                f"{' with ' if within else ''}{', '.join(within)}"
            )
        return self
