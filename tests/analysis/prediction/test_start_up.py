"""What trials take to start, by their number of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from analysis.prediction.start_up import START_UP_S, StartUp
from analysis.prediction.time_limits import in_time
from analysis.run.trial import Attempt, Trial
from search_spaces import SearchSpace, load_space

# Of deepspeed.initialize on Aurora, seconds by nodes (argonne-lcf/Megatron-DeepSpeed, June 2024).
AURORA = {
    8: [61.1],
    16: [107.7, 107.2, 107.1],
    32: [200.2, 206.5, 200.5],
    64: [413.6, 394.9, 414.7],
}
SPACE = """\
version: 1
name: starts
model: llama_8b
cluster: dgx_h100
trainer: {command: [train]}
parameters: {num_nodes: [1, 8, 64], tp: [8], pp: [1], mbs: [1], gas: [4]}
objective: {maximize: tokens_per_second}
trial: {timeout: 5m, warmup_steps: 2, measured_steps: 8}
"""


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    path = tmp_path / "starts.yaml"
    path.write_text(SPACE)
    return load_space(str(path))


def trial(nodes: int, start_s: float, step_s: float = 2.0, kind: str = "ok") -> Trial:
    names = tuple(f"n{i}" for i in range(nodes))
    attempt = Attempt(1, "t1", names, 0.0, start_s + 10 * step_s, kind)
    result = {"step_time_s": {"median": step_s}}
    return Trial(1, {}, 0.0, attempts=[attempt], kind=kind, objective=1.0, result=result)


def seen(counts: Iterable[int]) -> list[tuple[int, float]]:
    return [(nodes, seconds) for nodes in counts for seconds in AURORA[nodes]]


def test_wider_trials_are_foretold_from_narrower_ones() -> None:
    line = StartUp.through(seen([8, 16, 32]))
    assert line is not None
    assert line.seconds(64) == pytest.approx(np.median(AURORA[64]), rel=0.1)
    level = np.median([seconds for _, seconds in seen([8, 16, 32])])
    assert level < 0.3 * np.median(AURORA[64])  # what one figure for all widths would say


def test_one_number_of_nodes_says_nothing_of_others() -> None:
    line = StartUp.through([(4, 50.0), (4, 70.0), (4, 54.0)])
    assert line == StartUp(54.0, 0.0)
    assert StartUp.through([]) is None


@pytest.mark.parametrize("trials", [1, 20])
def test_scatter_between_narrow_trials_is_no_slope(trials: int) -> None:
    line = StartUp.through([(1, 55.0), (2, 66.0)] * trials)
    assert line is not None
    assert line.seconds(64) < 4 * 60  # the line through both would be at 750


def test_a_steep_rise_between_two_widths_is_not_foretold_of_the_narrow_one() -> None:
    line = StartUp.through([*[(4, 60.0)] * 6, (8, 400.0)])
    assert line is not None and line.base_s >= 0
    assert line.seconds(4) == pytest.approx(60.0)


def test_more_nodes_never_start_sooner() -> None:
    line = StartUp.through([(1, 90.0), (8, 40.0), (8, 42.0)])
    assert line is not None and line.per_node_s == 0


def test_what_is_learned_is_what_successes_took_besides_their_steps(space: SearchSpace) -> None:
    assert StartUp.learned(space, []) == StartUp(START_UP_S)
    failed = trial(8, 500.0, kind="crash")
    assert StartUp.learned(space, [trial(8, 33.0), failed]).seconds(8) == pytest.approx(33.0)


@pytest.mark.parametrize("kind", [None, "timeout"])
def test_repeats_that_run_or_failed_say_nothing(space: SearchSpace, kind: str | None) -> None:
    measured = trial(8, 33.0)
    ended = None if kind is None else 1_900.0
    measured.attempts.append(
        Attempt(2, "t1r", measured.attempts[0].nodes, 100.0, ended, kind, repeat=True)
    )
    assert StartUp.learned(space, [measured]).seconds(8) == pytest.approx(33.0)


def test_a_slow_start_on_many_nodes_leaves_less_of_the_time_limit(space: SearchSpace) -> None:
    configs = [{"num_nodes": n, "tp": 8, "pp": 1, "mbs": 1, "gas": 4} for n in (1, 8, 64)]
    prediction = Pricing(space).predict(configs)
    assert (in_time(space, prediction) > 0.99).all()
    trials = [trial(nodes, seconds) for nodes, seconds in seen([8, 16, 32])]
    narrow, wider, widest = in_time(space, prediction, trials)
    assert narrow > 0.99 and wider > 0.99 and widest < 0.01
