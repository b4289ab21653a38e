"""Counting and drawing: exact against brute force, honest where it estimates."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable

import numpy as np
import pytest

from search_spaces import SearchSpace, SpaceError, check, load_space, shipped_records
from search_spaces.points.enumeration import MAX_WORK, ValidConfigs
from support.broken_rules import broken_rules

Load = Callable[[str], SearchSpace]
SAMPLE = 20


def brute_force(space: SearchSpace) -> tuple[int, dict[str, int], dict[str, int]]:
    """The same counts row by row."""
    names = list(space.parameters)
    rows = list(itertools.product(*(space.parameters[n].values for n in names)))
    columns = {n: np.array([r[i] for r in rows]) for i, n in enumerate(names)}
    broken = broken_rules(space, columns)
    left = np.ones(len(rows), dtype=bool)
    in_order = {}
    for rule in space.rules:
        in_order[rule.name] = int(np.count_nonzero(left & broken[rule.name]))
        left &= ~broken[rule.name]
    alone = {name: int(np.count_nonzero(removed)) for name, removed in broken.items()}
    return int(np.count_nonzero(left)), alone, in_order


@pytest.mark.parametrize("chunk", [1, 50, 1 << 19])
def test_counts_equal_brute_force_whatever_the_chunks(
    load: Load, good: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search_spaces.points.enumeration.CHUNK", chunk)
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
    exact, estimate = check(space), check(space, max_edges=1000)
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


def test_tensor_parallelism_wider_than_a_node_names_what_allows_it(load: Load) -> None:
    wide = BIG.replace("{log2: [1, 8]}", "[16]\n  num_nodes: 2")
    with pytest.raises(SpaceError, match=r"tp == 0; allow: \[tp_across_nodes\]"):
        check(load(wide))
    assert check(load(f"{wide}allow: [tp_across_nodes]\n")).valid


def test_a_sample_without_a_valid_configuration_does_not_claim_there_is_none(load: Load) -> None:
    space = load(BIG.replace("a * b <= 5000", "a * b * c == 1"))
    with pytest.raises(SpaceError, match=r"no valid configuration found at random"):
        check(space, max_edges=1000)


def listed(space: SearchSpace) -> np.ndarray:
    """All valid raw indices, by trying every one."""
    return np.flatnonzero(space.valid(space.raw_columns(np.arange(space.raw_size))))


@pytest.mark.parametrize("name", [*shipped_records("space")])
def test_the_valid_configurations_are_those_that_keep_every_rule(name: str) -> None:
    space = load_space(name)
    found = ValidConfigs(space)
    expected = listed(space)
    assert found.exact and found.count == len(expected)
    np.testing.assert_array_equal(found.all(), expected)


@pytest.mark.parametrize("name", [*shipped_records("space")])
def test_a_rule_reads_no_other_parameters_than_it_is_known_to(name: str) -> None:
    space = load_space(name)
    rng = np.random.default_rng(1)
    rows = space.raw_columns(rng.integers(space.raw_size, size=2000))
    others = space.raw_columns(rng.integers(space.raw_size, size=2000))
    for rule in space.rules:
        read = frozenset().union(*(space.reads[n] for n in rule.names))
        changed = {n: rows[n] if n in read else others[n] for n in space.parameters}
        kept, again = (rule.holds(space.columns(c)) for c in (rows, changed))
        np.testing.assert_array_equal(*np.broadcast_arrays(kept, again), err_msg=rule.name)


@pytest.mark.parametrize("max_edges", [0, 20, 1 << 20])
def test_every_valid_configuration_is_drawn_as_often_as_any_other(
    load: Load, good: str, max_edges: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all parameters are bound, some, or none."""
    monkeypatch.setattr("search_spaces.points.enumeration.CHUNK", 1024)
    space = load(good)
    found = ValidConfigs(space, max_edges=max_edges)
    assert found.exact == (max_edges > 20)
    expected = listed(space)
    rng = np.random.default_rng(0)
    seen = [found.sample(SAMPLE, rng) for _ in range(20_000 // SAMPLE)]
    assert all(len(np.unique(s)) == SAMPLE for s in seen)
    times = np.bincount(np.searchsorted(expected, np.concatenate(seen)), minlength=len(expected))
    assert set(np.concatenate(seen)) == set(expected)
    mean = 20_000 / len(expected)
    assert np.all(np.abs(times - mean) < 5 * math.sqrt(mean))
    assert set(found.sample(10**6, rng)) == set(expected)


def test_equal_seeds_draw_the_same(load: Load) -> None:
    found = ValidConfigs(load(BIG))
    one, two = (found.sample(100, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_a_space_far_too_large_to_try_is_counted_exactly(load: Load) -> None:
    """10^16 raw configurations, pairwise constraints: the count factorizes."""
    axes = "".join(f"  x{i}: {{range: [1, 100]}}\n" for i in range(8))
    rules = "constraints: [x0 < x1, x2 * x3 <= 50, x4 == x5 and x5 == x6]\n"
    head, _, rest = BIG.partition("  tp:")
    space = load(head + axes + rules + "objective:" + rest.partition("objective:")[2])
    pairs = sum(a * b <= 50 for a in range(1, 101) for b in range(1, 101))
    report = check(space)
    assert report.exact and report.raw == 10**16
    assert report.valid == 4950 * pairs * 100 * 100
    assert {r.name: r.alone for r in report.rules if r.alone}["constraint_1"] == 5050 * 10**12


def test_the_report_prints_totals_rules_and_notes() -> None:
    text = check(load_space("gpt_20b_zero_topo_frontier")).text()
    assert "9,216 raw configurations" in text
    assert "gradients_nest_weights" in text and "gradient_shard % weight_shard == 0" in text
    assert "sequence_by_tp" in text


def test_the_report_notes_what_this_machine_cannot_measure(load: Load, good: str) -> None:
    space = load(good.replace("tflops_per_gpu", "energy_joules"))
    noted = "note: the nodes must measure what this machine does not: energy_joules" in (
        check(space).text()
    )
    assert noted == bool(space.unmeasured())


@pytest.mark.parametrize("name", [*shipped_records("space")])
def test_every_shipped_space_has_valid_configurations(name: str) -> None:
    report = check(load_space(name))
    assert report.valid > 0 and report.exact


@pytest.mark.parametrize(
    ("parameters", "rules"),
    [
        ("a: {range: [1, 4000]}, b: {range: [1, 4000]}", [f"a * b > {i}" for i in range(99)]),
        (
            ", ".join(f"p{i}: [1, 2, 3, 4]" for i in range(12)),
            [" + ".join(f"p{i}" for i in range(12)) + " == 17"],
        ),
    ],
)
def test_the_work_of_counting_is_bounded_whatever_the_space(
    load: Load, parameters: str, rules: list[str]
) -> None:
    space = load(
        "version: 1\ncluster: dgx_h100\ntrainer: {command: [x]}\nobjective: {maximize: speed}\n"
        f"parameters: {{{parameters}}}\nconstraints: {json.dumps(rules)}\n"
    )
    assert ValidConfigs(space).work <= MAX_WORK
    report = check(space)
    assert not report.exact and 0 < report.valid <= report.raw


def test_more_configurations_than_can_be_numbered_are_refused(load: Load) -> None:
    parameters = ", ".join(f"p{i}: {{range: [1, 10000]}}" for i in range(6))
    with pytest.raises(SpaceError, match=r"key 'parameters': found more than 2\^62"):
        load(
            "version: 1\ncluster: dgx_h100\ntrainer: {command: [x]}\nobjective: {maximize: s}\n"
            f"parameters: {{{parameters}}}\n"
        )
