"""What the benchmark of the driver at scale means by useful and by allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from benchmarks.driver.node_time import allowed, node_time


@pytest.mark.parametrize(
    "nodes, held_s, max_concurrent, share",
    [
        (128, {16: 1.0}, 90, 1.0),
        (128, {12: 1.0}, 90, 120 / 128),
        (127, {16: 1.0, 12: 1.0}, 90, 124 / 127),
        (128, {16: 1.0}, 4, 64 / 128),
        # 20 holds two of 8 or one of 12 and one of 8; twelves alone leave 8 idle.
        (20, {12: 3.0, 8: 1.0}, 90, (3 * 12 + 8) / (3 * 20)),
    ],
)
def test_the_widths_allow_what_the_best_mixture_of_patterns_holds(
    nodes: int, held_s: dict[int, float], max_concurrent: int, share: float
) -> None:
    assert allowed(nodes, held_s, max_concurrent) == pytest.approx(share)


def test_only_answers_are_useful_and_what_runs_after_the_last_start_does_not_count() -> None:
    run = Run(Path(), opened_t=[0.0])
    for number, (width, start, end, kind) in enumerate(
        [(12, 0, 100, "ok"), (16, 0, 50, "node_failure"), (16, 50, 150, "oom")], start=1
    ):
        nodes = tuple(f"n{i}" for i in range(width))
        attempt = Attempt(1, str(number), nodes, float(start), ended_t=float(end), kind=kind)
        run.trials[number] = Trial(number, {}, 0.0, attempts=[attempt], kind=kind)
    run.trials[2].attempts.append(Attempt(2, "2 again", ("n1",), 200.0, ended_t=300.0, kind="ok"))
    found = node_time(run, [(0.0, 28)], until=1e9, max_concurrent=90)
    assert found["hours"] == pytest.approx(50 / 3600)
    assert found["allowed_share"] == pytest.approx(1.0)
    assert found["held_share"] == pytest.approx(1.0)
    assert found["useful_share"] == pytest.approx(12 / 28)
