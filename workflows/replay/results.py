"""The landscape of trials that another program ran.

Only values and objectives are known: without a model and a cluster the cost model has no price, and
no rule of a space applies.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from analysis import Run, TableError
from foundation.messages import shown
from search_spaces import SearchSpace, SpaceError, load_space
from workflows.replay.landscape import Answer, Landscape

INACTIVE = "inactive"  # value of a parameter that a trial lacks
KEY = "objective"
SHOWN = 3  # parameters that an error names


def of_results(run: Run) -> Landscape:
    """The landscape of all completed trials; the first of several objectives counts.

    Raises TableError if no space can have its values, or there is nothing to choose from.
    """
    trials = [trial for trial in run.trials.values() if trial.ended and not trial.stopped_early]
    names = _names([*dict.fromkeys(name for trial in trials for name in trial.config)])
    columns = {to: _column([t.config.get(name) for t in trials]) for name, to in names.items()}
    if not columns:
        raise TableError(f"{run.where}: nothing to replay: there is no trial with a parameter")
    _check_combinations(run.where, {n: len(set(columns[to])) for n, to in names.items()})
    content = {
        "version": 1,
        "name": "replay",
        "trainer": {"command": ["recorded"]},
        "parameters": {name: _distinct(cells) for name, cells in columns.items()},
        "objective": {"maximize" if run.maximize else "minimize": KEY},
        "subject_to": [bound.text for bound in run.subject_to],
        "trial": {"timeout": "365d"},  # what was recorded has ended
    }
    try:
        space = load_space(content)
    except SpaceError as error:
        raise TableError(f"{run.where}: no space has such values: {error}") from None

    def recorded() -> Iterator[tuple[Mapping[str, Any], Answer]]:
        for row, trial in enumerate(trials):
            config = space.canonical({name: cells[row] for name, cells in columns.items()})
            reached = np.nan if trial.objective is None else trial.objective
            yield config, Answer(reached, str(trial.kind), {**trial.result, **trial.bounded})

    return Landscape.of(run.space, space, recorded()).checked(run.where)


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
    """Names without a meaning to a space, by the given ones."""
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
