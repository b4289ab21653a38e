"""The Pareto front of a run: which trials are on it, and how the report shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis.pareto import non_dominated
from analysis.report.figures import front as figure
from analysis.report.page import write_report
from analysis.run.fold import Run, read_run
from support.run_book import RunBook

pytestmark = pytest.mark.usefixtures("quick_forests")
GOALS = [{"maximize": "tokens_per_second"}, {"minimize": "num_nodes"}]
# Tokens per second and nodes of trials 1, 2, ...: 1, 3 and 5 are the front, 4 equals 3.
FIGURES = [(100.0, 1), (90.0, 1), (150.0, 2), (150.0, 2), (400.0, 8), (390.0, 16), None]


def write_run(
    directory: Path, goals: list[dict[str, str]], figures: list[tuple[float, ...] | None]
) -> Path:
    """A run of these trials; None failed."""
    book = RunBook(directory, *goals)
    for number, reached in enumerate(figures, start=1):
        config = {"num_nodes": number, "tp": 2}
        book.run_one(number, config, "ok" if reached else "oom", reached)
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return read_run(write_run(tmp_path / "run", GOALS, FIGURES))


def test_the_non_dominated_rows_are_those_that_brute_force_finds() -> None:
    rng = np.random.default_rng(0)
    for k in (1, 2, 3):
        figures = rng.integers(0, 6, (60, k)).astype(float)
        expected = [
            not any((other >= row).all() and (other > row).any() for other in figures)
            for row in figures
        ]
        assert non_dominated(figures).tolist() == expected


def test_the_front_has_each_best_compromise_once_and_the_first_objectives_best_first(
    run: Run,
) -> None:
    assert [trial.number for trial in run.front()] == [5, 3, 1]
    assert run.best is not None and run.best.number == 5
    assert len(run.comparable()) == 6


def test_of_equally_good_trials_the_best_is_the_one_that_is_better_in_the_next_objective(
    tmp_path: Path,
) -> None:
    run = read_run(write_run(tmp_path / "run", GOALS, [(100.0, 8), (100.0, 2), (90.0, 1)]))
    assert run.best is not None and run.best.number == 2


def test_a_run_with_one_objective_has_no_front(build: Any) -> None:
    run = read_run(build(count=20))
    assert run.goals == [("tflops_per_gpu", True)]
    assert run.front() == [] and run.comparable() == []


def test_the_report_has_the_front_and_every_point_is_of_a_trial_in_its_table(run: Run) -> None:
    page = write_report(run.directory).read_text()
    drawn = json.loads(page.split('id="data">')[1].split("</script>")[0])["front"]
    assert [point[0] for point in drawn["front"]] == [5, 3, 1]
    assert sorted(point[0] for point in drawn["rest"]) == [2, 4, 6]  # the failure is no point
    for number in range(1, 7):
        assert f'id="trial-{number}"' in page
    assert "Maximizes throughput (tokens/s), minimizes nodes" in page
    assert "<b>3</b> are Pareto-optimal" in page and 'data-draw="front"' in page


def test_best_yaml_is_for_the_first_objective_and_lists_the_front(run: Run) -> None:
    write_report(run.directory)
    content = yaml.safe_load((run.directory / "report" / "best.yaml").read_text())
    assert content["objective"] == {"maximize": "tokens_per_second", "value": 400.0}
    assert content["parameters"] == {"num_nodes": 5, "tp": 2}
    assert [entry["trial"] for entry in content["front"]] == [5, 3, 1]
    assert content["front"][2] == {
        "trial": 1,
        "objectives": {"tokens_per_second": 100.0, "num_nodes": 1},
        "parameters": {"num_nodes": 1, "tp": 2},
    }


def test_a_report_with_one_objective_speaks_of_no_front(build: Any) -> None:
    folder = build(count=12)
    page = write_report(folder).read_text()
    assert "Pareto" not in page.split("<script>")[0]
    assert "front" not in yaml.safe_load((folder / "report" / "best.yaml").read_text())
    assert 'data-draw="front"' not in page


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "goals",
    [
        [{"minimize": "step_time_s.median"}, {"maximize": "$x_{<b>&"}],
        [{"maximize": "a"}, {"minimize": "peak_memory_bytes"}, {"minimize": "joules_per_token"}],
    ],
)
def test_points_have_all_objectives_in_the_units_shown(
    tmp_path: Path, goals: list[dict[str, str]], count: int
) -> None:
    reached = [(1.0, 2.0**31, 0.0), (20.0, 2.0**30, -1.0), (2.5, 1.0, 3.0)]
    given = [each[: len(goals)] for each in reached[:count]]
    run = read_run(write_run(tmp_path / "run", goals, [*given]))
    drawn = figure(run, run.trials)
    points = drawn["front"] + drawn["rest"]
    assert sorted(p[0] for p in points) == list(range(1, count + 1))
    first = next(p for p in points if p[0] == 1)
    assert first[2] == (2.0 if len(goals) == 3 else 2.0**31)  # GiB of a peak memory
    assert drawn["log"][0] == (count == 3) and len(drawn["labels"]) == len(goals)
    assert bool(drawn["steps"]) == (len(goals) == 2)


def test_the_line_is_the_best_first_objective_at_no_worse_a_second_one(tmp_path: Path) -> None:
    for second in ("minimize", "maximize"):
        goals = [{"maximize": "a"}, {second: "b"}]
        sign = 1 if second == "minimize" else -1
        best, other = (1.0, sign * 1.0), (2.0, sign * 2.0)
        figures: list[tuple[float, ...] | None] = [best, other, (0.5, sign * 1.5)]
        run = read_run(write_run(tmp_path / second, goals, figures))
        assert figure(run, run.trials)["steps"] == [(sign * 1.0, 1.0), (sign * 2.0, 2.0)]
