"""Counting: exact against brute force, quick for millions, honest when it estimates."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from workflows.space import SearchSpace, SpaceError, check, load_space, shipped_spaces

Load = Callable[[str], SearchSpace]


def brute_force(space: SearchSpace) -> tuple[int, dict[str, int], dict[str, int]]:
    """The same counts row by row."""
    names = list(space.parameters)
    rows = list(itertools.product(*(space.parameters[n].values for n in names)))
    columns = {n: np.array([r[i] for r in rows]) for i, n in enumerate(names)}
    found = space.violations(columns)
    left = np.ones(len(rows), dtype=bool)
    in_order = {}
    for rule in space.rules:
        in_order[rule.name] = int(np.count_nonzero(left & found.removed[rule.name]))
        left &= ~found.removed[rule.name]
    alone = {name: int(np.count_nonzero(removed)) for name, removed in found.removed.items()}
    return int(np.count_nonzero(found.valid)), alone, in_order


@pytest.mark.parametrize("chunk", [1, 50, 1 << 22])
def test_counts_equal_brute_force_whatever_the_chunks(
    load: Load, good: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workflows.space.counting.CHUNK", chunk)
    space = load(good)
    report = check(space)
    valid, alone, in_order = brute_force(space)
    assert (report.raw, report.valid, report.exact) == (space.raw_size, valid, True)
    assert {r.name: r.alone for r in report.rules} == alone
    assert {r.name: r.in_order for r in report.rules} == in_order
    assert report.raw - sum(in_order.values()) == valid


@pytest.mark.parametrize("name", ["gpt_175b_frontier_table4", "gpt_20b_zero_topo_frontier"])
def test_shipped_spaces_are_counted_as_by_brute_force(name: str) -> None:
    space = load_space(name)
    report = check(space)
    valid, alone, _ = brute_force(space)
    assert report.valid == valid
    assert {r.name: r.alone for r in report.rules} == alone


BIG = """\
version: 1
cluster: dgx_h100
trainer: {command: [train]}
parameters:
  tp: {log2: [1, 8]}
  a: {range: [1, 100]}
  b: {range: [1, 100]}
  c: {range: [1, 100]}
constraints: [a * b <= 5000, c % 2 == 0]
objective: {maximize: speed}
"""


def test_millions_are_counted_exactly(load: Load) -> None:
    report = check(load(BIG))
    pairs = sum(a * b <= 5000 for a in range(1, 101) for b in range(1, 101))
    assert report.exact and report.raw == 4_000_000
    assert report.valid == 4 * pairs * 50


def test_a_space_too_large_to_count_is_estimated_and_says_so(load: Load) -> None:
    space = load(BIG)
    exact, estimate = check(space), check(space, exact_limit=1000)
    assert not estimate.exact
    assert estimate.valid == pytest.approx(exact.valid, rel=0.02)
    assert "about" in estimate.text() and "estimates" in estimate.text()


def test_an_impossible_space_names_the_rules_that_remove_the_most(load: Load, good: str) -> None:
    space = load(good.replace("size <= 64", "size <= 1 and tp > 1"))
    with pytest.raises(SpaceError) as caught:
        check(space)
    first, worst, *_ = str(caught.value).splitlines()
    assert "no configuration is valid" in first
    assert "constraint_1 removes" in worst


def test_a_sample_without_a_valid_configuration_does_not_claim_there_is_none(load: Load) -> None:
    space = load(BIG.replace("a * b <= 5000", "a * b * c == 1"))
    with pytest.raises(SpaceError, match=r"no valid configuration found in 1,000,000 random ones"):
        check(space, exact_limit=1000)


def test_the_report_prints_totals_rules_and_notes() -> None:
    text = check(load_space("gpt_20b_zero_topo_frontier")).text()
    assert "9,216 raw configurations" in text
    assert "gradients_nest_weights" in text and "gradient_shard % weight_shard == 0" in text
    assert "sequence_by_tp" in text


def test_the_report_notes_what_the_trainer_lacks(load: Load, good: str) -> None:
    text = check(load(good.replace("  tp:", "  gx: [1, 2]\n  tp:"))).text()
    assert "note: the built-in trainer does not have gx yet" in text


@pytest.mark.parametrize("name", shipped_spaces())
def test_every_shipped_space_has_valid_configurations(name: str) -> None:
    report = check(load_space(name))
    assert report.valid > 0 and report.exact
