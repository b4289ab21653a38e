"""The benchmark of Pareto fronts, on a sweep that the tests write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search.pareto import Sought, area, lines, main, play, shares, sought


@pytest.fixture
def by_nodes(truth: Callable[..., Path]) -> Sought:
    """One model on one and two nodes."""
    every = [*sought(truth((16, 1), (16, 2)))]
    assert [of.second for of in every] == ["peak_memory_bytes", "num_nodes"]
    return every[1]


def test_the_area_is_what_counting_finds() -> None:
    rng = np.random.default_rng(0)
    axis = (np.arange(200) + 0.5) / 200
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 1, 2)
    for count in (1, 3, 12):
        found = rng.uniform(-0.2, 1.0, (count, 2))
        expected = (found >= grid).all(axis=2).any(axis=1).mean()
        assert area(found, np.zeros(2)) == pytest.approx(expected, abs=0.01)
    assert area(np.array([[2.0, -1.0], [-1.0, 2.0]]), np.zeros(2)) == 0
    assert area(np.empty((0, 2)), np.zeros(2)) == 0


def test_all_numbers_of_nodes_are_one_landscape_whose_front_has_each(by_nodes: Sought) -> None:
    configs = by_nodes.landscape.configs
    assert {config["num_nodes"] for config in configs} == {1, 2}
    fastest = {
        nodes: max(
            (c for c in configs if c["num_nodes"] == nodes),
            key=lambda c: (by_nodes.figures(c) or {"tokens_per_second": 0.0})["tokens_per_second"],
        )
        for nodes in (1, 2)
    }
    assert shares(by_nodes, [*fastest.values()]) == pytest.approx([1.0] * 3)
    alone = [shares(by_nodes, [fastest[nodes]])[0] for nodes in (1, 2)]
    assert all(0 < share < 1 for share in alone)


def test_a_failure_adds_nothing(by_nodes: Sought) -> None:
    failed = [c for c in by_nodes.landscape.configs if by_nodes.figures(c) is None]
    assert failed and shares(by_nodes, failed) == [0.0] * 3


def test_the_search_is_sooner_near_the_front_than_chance(by_nodes: Sought) -> None:
    guided = shares(by_nodes, play(by_nodes, "meshtune", 0, trials=8))
    chance = [shares(by_nodes, play(by_nodes, "random", seed, trials=8))[0] for seed in range(3)]
    assert guided[0] > np.mean(chance) and guided[0] > 0.9


def test_rows_are_means_over_landscapes_and_seeds() -> None:
    def one(landscape: str, *reached: float) -> dict[str, object]:
        return {"landscape": landscape, "second": "num_nodes", "policy": "random",
                "shares": reached}  # fmt: skip

    *_, row = lines([one("a", 0.1, 0.5, 0.9), one("b", 0.3, 0.7, 1.0)])
    assert row == "| num_nodes | random | 2 | 20.0 % | 60.0 % | 95.0 % | 90.0 % |"


@pytest.mark.heavy
def test_every_policy_is_played_and_written_down(
    truth: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    folder = truth((16, 1))
    assert main(["--truth", str(folder), "--seeds", "1", "--json", str(out)]) == 0
    assert "Python" in capsys.readouterr().out.splitlines()[0]
    written = json.loads(out.read_text())
    assert [w["policy"] for w in written] == ["meshtune", "deephyper", "random"]
    assert {w["second"] for w in written} == {"peak_memory_bytes"}
    for one in written:
        assert 0 <= one["shares"][0] <= one["shares"][1] <= one["shares"][2] <= 1 + 1e-9


def test_a_folder_without_measured_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--truth", str(tmp_path)])
    assert raised.value.code == 2
