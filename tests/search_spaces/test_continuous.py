"""Continuous parameters, ordered words and categories: what a file says, and what is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_spaces import Candidates, SearchSpace, SpaceError, check
from search_spaces.parameters import FINEST, Span

Load = Callable[[str], SearchSpace]

SPACE = """
version: 1
cluster: dgx_h100
trainer: {command: [python, train.py, "{lr}"]}
parameters:
  lr: {float: [1e-5, 1e-2], log: true}
  steps: {int: [1, 1000], log: true}
  dropout: {float: [0, 1]}
  size: {ordered: [small, medium, large]}
  port: {categories: [29500, 7]}
  optimizer: [sgd, adam]
objective: {minimize: val_loss}
"""


def spread(values: list[float], span: Span) -> list[float]:
    """Quartiles of where values lie in an interval: 0.25, 0.5, 0.75 where they are even."""
    return list(np.quantile([span.unit(value) for value in values], [0.25, 0.5, 0.75]))


@pytest.mark.parametrize(
    "span",
    [Span(1e-5, 1e-2, log=True), Span(0, 1), Span(0.99, 0.999), Span(-3, 7), Span(0, 1e9)],
    ids=str,
)
def test_a_grid_is_even_by_its_own_scale_and_its_numbers_are_short(span: Span) -> None:
    grid = span.grid
    assert (grid[0], grid[-1], len(grid)) == (span.low, span.high, FINEST)
    gaps = np.diff([span.unit(value) for value in grid])
    assert gaps.max() < 1.02 / (FINEST - 1) and gaps.min() > 0.98 / (FINEST - 1)
    assert max(len(f"{value:g}") if value == float(f"{value:g}") else 6 for value in grid) <= 11
    assert [span.place(value) for value in grid] == list(range(FINEST))


def test_whole_numbers_come_once_each_and_small_ones_weigh_more_by_the_logarithm() -> None:
    span = Span(1, 1000, log=True, whole=True)
    assert span.grid[:5] == (1, 2, 3, 4, 5) and len(set(span.grid)) == len(span.grid)
    assert all(isinstance(value, int) for value in span.grid)
    assert span.shares[:9].sum() / span.shares.sum() == pytest.approx(1 / 3, abs=0.01)


def test_any_number_of_the_interval_is_a_value_and_stays_as_it_is(load: Load) -> None:
    space = load(SPACE)
    config = {"lr": 3.14159e-4, "steps": 777, "dropout": 0, "size": "large", "port": 7}
    config["optimizer"] = "sgd"
    assert space.first_violation(config) is None
    canonical = space.canonical(config)
    assert canonical["lr"] == 3.14159e-4 and canonical["steps"] == 777
    assert isinstance(canonical["dropout"], float)
    assert space.command(config, "/t")[-1] == "0.000314159"
    lr = space.parameters["lr"].values
    index = Candidates(space).indices_of([config])
    assert space.raw_columns(index)["lr"][0] == min(lr, key=lambda v: abs(math.log(v / 3.14159e-4)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lr": 1e-6}, "lr: found 1e-06, accepted numbers from 1e-05 to 0.01"),
        ({"steps": 2.5}, "steps: found 2.5, accepted whole numbers from 1 to 1000"),
        ({"dropout": True}, "dropout: found true, accepted numbers from 0 to 1"),
        ({"size": "huge"}, "size: found 'huge', accepted 'small', 'medium', 'large'"),
    ],
)
def test_what_is_no_value_is_refused(load: Load, change: Mapping[str, Any], says: str) -> None:
    space = load(SPACE)
    drawn = Candidates(space).draw(1, np.random.default_rng(0), [], 1)[0]
    assert space.first_violation({**drawn, **change}) == says


def test_a_frozen_space_is_the_same_and_says_so_as_shortly(load: Load, tmp_path: Path) -> None:
    space = load(SPACE)
    again = load(space.frozen())
    assert again.fingerprint == space.fingerprint
    assert again.parameters == space.parameters
    assert "float: [1.0e-05, 0.01]" in space.frozen()
    other = load(SPACE.replace("[1e-5, 1e-2], log: true", "[1e-5, 1e-2]"))
    assert other.fingerprint != space.fingerprint


def test_a_draw_is_even_by_the_logarithm_where_that_is_asked_for(load: Load) -> None:
    space = load(SPACE)  # too large to be listed
    listed = load_space_of(load, "steps: {int: [1, 1000], log: true}, x: [1, 2]")
    drawn = Candidates(space).draw(4000, np.random.default_rng(0), [], 1)
    rng, some = np.random.default_rng(0), Candidates(listed)
    few = [some.draw(1, rng, [], 1)[0] for _ in range(400)]
    for configs, name in ((drawn, "lr"), (drawn, "dropout"), (few, "steps")):
        span = space.parameters[name].span
        assert span is not None
        assert spread([c[name] for c in configs], span) == pytest.approx([0.25, 0.5, 0.75], abs=0.1)


def load_space_of(load: Load, parameters: str) -> SearchSpace:
    head, _, _ = SPACE.partition("parameters:")
    objective = "objective: {minimize: val_loss}\n"
    head = head.replace('"{lr}"', "config.json")
    return load(f"{head}parameters: {{{parameters}}}\n{objective}")


def test_check_names_what_is_continuous_and_counts_its_grid(load: Load) -> None:
    report = check(load_space_of(load, "lr: {float: [1e-5, 1e-2], log: true}, opt: [a, b]"))
    assert (report.raw, report.valid, report.exact) == (2002, 2002, True)
    line = "  lr: 1e-05 to 0.01, continuous, even by the logarithm; counted as 1,001 values"
    assert line in report.text().splitlines()


def test_a_constraint_between_continuous_parameters_is_counted_within_its_bounds(
    load: Load,
) -> None:
    text = SPACE.replace(
        "objective:", "constraints: [lr * steps <= 1, dropout < lr * 50]\nobjective:"
    )
    report = check(load(text))
    assert 0 < report.valid < report.raw
    drawn = Candidates(load(text)).draw(500, np.random.default_rng(0), [], 1)
    assert len(drawn) == 500
    assert all(c["lr"] * c["steps"] <= 1 and c["dropout"] < c["lr"] * 50 for c in drawn)


def test_many_continuous_parameters_are_numbered_by_coarser_grids(load: Load) -> None:
    def axes(count: int) -> str:
        return ", ".join(f"x{i}: {{float: [0, 1]}}" for i in range(count))

    assert len(load_space_of(load, axes(6)).parameters["x0"].values) == 1001
    nine = load_space_of(load, axes(9))
    assert len(nine.parameters["x0"].values) == 101
    assert len(Candidates(nine).draw(10, np.random.default_rng(0), [], 1)) == 10
    with pytest.raises(SpaceError, match=r"more than 2\^62 combinations"):
        load_space_of(load, axes(10))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("{float: [1, 0]}", "found [1, 0], accepted the lower end first: [0, 1]"),
        ("{float: [1, 1]}", "found [1, 1], accepted the lower end first"),
        ("{float: [0, 1], log: true}", "found 0, accepted numbers above zero with log"),
        ("{int: [0.5, 2]}", "'parameters.lr.int[0]'"),
        ("{int: [1, 1e300]}", "'parameters.lr.int[1]'"),
        ("{float: [1, 2, 3]}", "'parameters.lr.float'"),
        ("{float: [1, 2], step: 1}", "'parameters.lr.step': unknown key"),
        ("{ordered: [1, 2]}", "'parameters.lr.ordered[0]'"),
        ("{ordered: [a, a]}", "found 'a' twice, accepted once"),
        ("{categories: [a, 1]}", "accepted values of one type"),
    ],
)
def test_a_mistake_is_told_by_its_place(load: Load, spec: str, says: str) -> None:
    with pytest.raises(SpaceError) as caught:
        load_space_of(load, f"lr: {spec}")
    assert "space.yaml:5:" in str(caught.value) and says in str(caught.value)
