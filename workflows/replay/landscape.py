"""A landscape: recorded trials of one problem, as a space that can be searched again."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from analysis import Metrics, MissingMetricError, Run, TableError, Trial
from foundation.messages import shown
from search_spaces import SearchSpace, SpaceError, load_space
from trainer.plan.jobs import Jobs

Key = tuple[Any, ...]
INACTIVE = "inactive"  # value of a parameter that a trial lacks
KEY = "objective"
SHOWN = 3  # parameters that an error names


@dataclass(frozen=True)
class Landscape:
    """Recorded configurations of one model on one machine."""

    key: str  # its name among the landscapes of its file
    space: SearchSpace  # as a person would write it for this model and machine
    configs: list[dict[str, Any]]  # canonical, in the file's order
    answers: Mapping[Key, list[Trial]]  # every recorded repeat, by canonical configuration's key
    model: str = ""  # identity of the model, for fits that leave it out
    unread: tuple[str, ...] = ()  # columns that vary in the file and are not used

    @classmethod
    def of(
        cls, key: str, space: SearchSpace, recorded: Iterable[Trial], model: str = ""
    ) -> Landscape:
        """A landscape of trials of canonical configurations, in the file's order."""
        answers: dict[Key, list[Trial]] = {}
        for trial in recorded:
            answers.setdefault(tuple(trial.config.items()), []).append(trial)
        return cls(key, space, [dict(items) for items in answers], answers, model)

    @cached_property
    def medians(self) -> dict[Key, float]:
        """The objective of each configuration that ran: the median of its repeats.

        Only configurations within the space's bounds on measured values.
        """
        ran = {
            key: done
            for key, answers in self.answers.items()
            if (done := [a for a in answers if a.ok and math.isfinite(a.objective or 0.0)])
        }
        return {
            key: float(np.median([answer.objective or 0.0 for answer in done]))
            for key, done in ran.items()
            if all(
                bound.excess(float(np.median([self.bounded(a)[bound.key] for a in done]))) <= 0
                for bound in self.space.subject_to
            )
        }

    def bounded(self, answer: Trial) -> dict[str, float]:
        """The metrics of an answer that have bounds; raises MissingMetricError."""
        of = Metrics(answer.result).required
        return {bound.key: of(bound.key) for bound in self.space.subject_to}

    @property
    def best(self) -> float:
        medians = self.medians.values()
        return max(medians) if self.space.objective.maximize else min(medians)

    def share(self, config: Mapping[str, Any]) -> float:
        """The objective of a configuration relative to the best: 1 is as good, less is worse.

        0 if it never ran. If the best is not positive: 1 minus the distance from it, relative to
        its absolute value.
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


def of_results(run: Run) -> Landscape:
    """The landscape of all completed trials of another program; the first objective counts.

    Only values and objectives are known: without a model and a cluster the cost model has no price,
    and no rule of a space applies.

    Raises TableError if no space can have its values, or there is nothing to choose from.
    """
    trials = [trial for trial in run.trials.values() if trial.ended and not trial.stopped_early]
    names = _names([*dict.fromkeys(name for trial in trials for name in trial.config)])
    columns = {to: _column([t.config.get(name) for t in trials]) for name, to in names.items()}
    if not columns:
        raise TableError(f"{run.where}: nothing to replay: there is no trial with a parameter")
    _check_combinations(run.where, {n: len(set(columns[to])) for n, to in names.items()})
    space = recorded_space(
        f"{run.where}: no space has such values",
        trainer={"command": ["recorded"]},
        parameters={name: _distinct(cells) for name, cells in columns.items()},
        objective={"maximize" if run.maximize else "minimize": KEY},
        subject_to=[bound.text for bound in run.subject_to],
    )

    recorded = (
        answer(trial, space.canonical({name: cells[row] for name, cells in columns.items()}))
        for row, trial in enumerate(trials)
    )
    return Landscape.of(run.space, space, recorded).checked(run.where)


def answer(trial: Trial, config: dict[str, Any]) -> Trial:
    """A recorded trial as one of a canonical configuration, with bounded metrics in its result."""
    return replace(trial, config=config, result={**trial.result, **trial.bounded})


def precisions(jobs: Jobs) -> list[str]:
    """The number format of each job, as far as tables of sweeps know it."""
    number = jobs.columns()
    wide = np.where(number["element_bytes"] == 4, "fp32", "bf16")
    return [str(word) for word in np.where(number["fp8"] > 0, "fp8", wide)]


def recorded_space(problem: str, **sections: Any) -> SearchSpace:
    """The space of recorded trials; raises TableError that begins with the ``problem``."""
    # Recorded trials have ended: no timeout.
    content = {"version": 1, "name": "replay", "trial": {"timeout": "365d"}, **sections}
    try:
        return load_space(content)
    except SpaceError as error:
        raise TableError(f"{problem}: {error}") from None


def _check_combinations(where: str, values: Mapping[str, int]) -> None:
    if math.prod(values.values()) <= SearchSpace.MAX_CONFIGS:
        return
    widest = sorted(values, key=lambda name: -values[name])[:SHOWN]
    most = ", ".join(f"{shown(name)} {values[name]}" for name in widest)
    raise TableError(
        f"{where}: its {len(values)} parameters have more than 2^62 combinations of values that "
        f"were tried (the most: {most}), accepted fewer: round them in a copy of the file, or "
        "leave parameters out of it"
    )


def _names(given: list[str]) -> dict[str, str]:
    """Names that mean nothing to a space, by the given names."""
    plain = {name: "p_" + re.sub(r"\W", "_", name, flags=re.ASCII)[:40] for name in given}
    taken = Counter(plain.values())
    return {n: f"{p}_{i}" if taken[p] > 1 else p for i, (n, p) in enumerate(plain.items())}


def _column(cells: list[Any]) -> list[Any]:
    """Values of one type: unchanged if all are numbers or all are booleans, else as text."""
    for types in ((bool,), (int, float)):
        if all(type(cell) in types for cell in cells):
            return cells
    return [INACTIVE if cell is None else str(cell) for cell in cells]


def _distinct(cells: list[Any]) -> list[Any]:
    found = [*dict.fromkeys(cells)]
    return found if isinstance(found[0], str) else sorted(found)
