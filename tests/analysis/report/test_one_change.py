"""Measured changes of one parameter: the page says what the trials say, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.prediction.pricing import Pricing
from analysis.report.one_change import one_changes
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import load_space


def run_of(*trials: tuple[dict[str, Any], float | None]) -> Run:
    run = Run(Path())
    for number, (config, objective) in enumerate(trials, start=1):
        kind = "oom" if objective is None else "ok"
        run.trials[number] = Trial(
            number, config, 0.0, kind=kind, objective=objective, ended_t=float(number)
        )
    return run


def test_only_pairs_that_differ_in_one_parameter_count() -> None:
    run = run_of(
        ({"tp": 1, "mbs": 1}, 100.0),
        ({"tp": 2, "mbs": 1}, 70.0),
        ({"tp": 4, "mbs": 1}, 35.0),  # beside 2, not 1
        ({"tp": 2, "mbs": 2}, 77.0),
        ({"tp": 1, "mbs": 4}, None),
    )
    found = {(c.parameter, c.before, c.after): c for c in one_changes(run, None)}
    assert set(found) == {("tp", 1, 2), ("tp", 2, 4), ("mbs", 1, 2)}
    assert found["tp", 1, 2].shares == pytest.approx([-0.3])
    assert found["tp", 2, 4].trials == ((2, 3),)
    assert found["mbs", 1, 2].shares == pytest.approx([0.1])


def test_a_change_that_may_be_chance_is_said_to_be_so_and_comes_last() -> None:
    run = run_of(
        *(
            ({"sp": sp, "pp": pp}, 100.0 * (1.01 if sp else 1.0) / pp)
            for sp in (0, 1)
            for pp in (1, 2)
        )
    )
    first, last = one_changes(run, None)
    assert (first.parameter, first.by_chance, len(first.shares)) == ("pp", False, 2)
    assert (last.parameter, last.by_chance, len(last.shares)) == ("sp", True, 2)


def test_gas_may_follow_from_the_others_where_the_batch_is_the_same() -> None:
    space = load_space("tiny_cpu")
    assert space.model is not None
    drawn = {"tp": 1, "pp": 2, "mbs": 2, "gas": 4, "recompute": "none"}
    drawn |= {"zero_stage": 1, "sequence_parallel": False}
    config = space.canonical(drawn)
    other = space.canonical({**drawn, "mbs": 4, "gas": 2})
    run = run_of((dict(config), 50.0), (dict(other), 75.0))
    (change,) = one_changes(run, Pricing(space))
    assert (change.parameter, change.before, change.after) == ("mbs", 2, 4)
    assert change.shares == pytest.approx([0.5])
    assert one_changes(run, None) == []
