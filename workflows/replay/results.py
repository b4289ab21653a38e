"""The landscape of trials that another program ran: all that is known are values and objectives.

Their parameters are mere names here: without a model and a cluster the cost model has no price, and
no rule of a space holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis import Run, TableError
from foundation.messages import shown
from search_spaces import MAX_CONFIGS, SpaceError, load_space
from workflows.replay.landscape import Answer, Key, Landscape

INACTIVE = "inactive"  # the value of a parameter that a trial did not have
KEY = "objective"
SHOWN = 3  # parameters that an error names


def of_results(run: Run) -> Landscape:
    """A landscape of everything that was tried to its end.

    Args:
        run: from ``analysis.read_results``; of several objectives the first counts.

    Raises:
        TableError: if its values are none that a space can have, or there is nothing to choose.
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
        "trial": {"timeout": "365d"},  # what was recorded has ended
    }
    try:
        space = load_space(content)
    except SpaceError as error:
        raise TableError(f"{run.where}: no space has such values: {error}") from None
    answers: dict[Key, list[Answer]] = {}
    configs: dict[Key, dict[str, Any]] = {}
    for row, trial in enumerate(trials):
        config = space.canonical({name: cells[row] for name, cells in columns.items()})
        key = tuple(config.items())
        configs[key] = dict(config)
        reached = np.nan if trial.objective is None else trial.objective
        answers.setdefault(key, []).append(Answer(reached, str(trial.kind), trial.result))
    return Landscape(run.space, space, [*configs.values()], answers).checked(run.where)


def _check_combinations(where: str, values: Mapping[str, int]) -> None:
    """Raise if there are too many configurations to number them."""
    if math.prod(values.values()) <= MAX_CONFIGS:
        return
    widest = sorted(values, key=lambda name: -values[name])[:SHOWN]
    told = ", ".join(f"{shown(name)} {values[name]}" for name in widest)
    raise TableError(
        f"{where}: its {len(values)} parameters have more than 2^62 combinations of values that "
        f"were tried (the most: {told}), accepted fewer: round them in a copy of the file, or "
        "leave parameters out of it"
    )


def _names(given: list[str]) -> dict[str, str]:
    """Names that mean nothing to a space, by those that were given."""
    plain = {name: "p_" + re.sub(r"\W", "_", name, flags=re.ASCII)[:40] for name in given}
    taken = [*plain.values()]
    twice = {name for name in taken if taken.count(name) > 1}
    return {n: f"{p}_{i}" if p in twice else p for i, (n, p) in enumerate(plain.items())}


def _column(cells: list[Any]) -> list[Any]:
    """Values of one type: as they are if they are all numbers, or all truths; else as text."""
    for types in ((bool,), (int, float)):
        if all(type(cell) in types for cell in cells):
            return cells
    return [INACTIVE if cell is None else str(cell) for cell in cells]


def _distinct(cells: list[Any]) -> list[Any]:
    found = [*dict.fromkeys(cells)]
    return found if isinstance(found[0], str) else sorted(found)
