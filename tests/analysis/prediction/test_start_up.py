"""What trials take to start, by their number of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from analysis.prediction.start_up import SPREAD, START_UP_S, StartUp
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
    attempt = Attempt(1, "t1", names, 0.0, ended_t=start_s + 10 * step_s, kind=kind, steps=10)
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
    assert line == StartUp(54.0, 0.0, widest=4, widths=1)
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
        Attempt(2, "t1r", measured.attempts[0].nodes, 100.0, ended_t=ended, kind=kind, repeat=True)
    )
    assert StartUp.learned(space, [measured]).seconds(8) == pytest.approx(33.0)


def test_a_slow_start_on_many_nodes_leaves_less_of_the_time_limit(space: SearchSpace) -> None:
    configs = [{"num_nodes": n, "tp": 8, "pp": 1, "mbs": 1, "gas": 4} for n in (1, 8, 64)]
    prediction = Pricing(space).predict(configs)
    assert (Pricing(space).in_time(prediction) > 0.99).all()
    trials = [trial(nodes, seconds) for nodes, seconds in seen([8, 16, 32])]
    narrow, wider, widest = Pricing(space).in_time(prediction, trials)
    assert narrow > 0.99 and wider > 0.99 and 0.05 < widest < 0.2  # 395 to 415 s


def stuck(nodes: int, after_s: float = 300.0, steps: int | None = 0, repeat: bool = False) -> Trial:
    """A trial that timed out, by default before its first step."""
    names = tuple(f"n{i}" for i in range(nodes))
    attempt = Attempt(
        1, "t9", names, 0.0, ended_t=after_s, kind="timeout", steps=steps, repeat=repeat
    )
    return Trial(9, {}, 0.0, attempts=[attempt], kind="timeout")


def test_what_timed_out_before_its_first_step_takes_at_least_so_long(space: SearchSpace) -> None:
    started = [trial(1, 40.0), trial(8, 50.0)]
    line = StartUp.learned(space, [*started, stuck(32)])
    assert line.seconds(8) == StartUp.learned(space, started).seconds(8)
    assert line.seconds(32) > 300 and line.seconds(64) > 300
    configs = [{"num_nodes": n, "tp": 8, "pp": 1, "mbs": 1, "gas": 4} for n in (8, 64)]
    prediction = Pricing(space).predict(configs)
    narrow, once = Pricing(space).in_time(prediction, [*started, stuck(32)])
    assert narrow > 0.99 and 0.05 < once < 0.25
    _, twice = Pricing(space).in_time(prediction, [*started, stuck(32), stuck(64)])
    assert twice < once / 2


@pytest.mark.parametrize(
    "said",
    [
        [stuck(32, steps=3)],  # it started
        [stuck(32, steps=None)],  # of a journal that does not say
        [stuck(32, repeat=True)],  # its trial started before
        [stuck(32), trial(64, 60.0)],  # it was no matter of width: a hang
    ],
)
def test_other_timeouts_say_nothing_of_starting(space: SearchSpace, said: list[Trial]) -> None:
    assert not StartUp.learned(space, [trial(8, 50.0), *said]).waited


def test_a_trainer_that_never_told_of_a_step_may_have_made_some(space: SearchSpace) -> None:
    assert not StartUp.learned(space, [stuck(32)]).waited
    assert StartUp.learned(space, [stuck(32), trial(1, 50.0)]).waited == ((32, 300.0),)


def test_beyond_what_has_started_it_is_less_certain() -> None:
    one, several = (StartUp.through(seen(counts)) for counts in ([8], [8, 16, 32]))
    assert one is not None and several is not None
    assert one.log_sd(8) == pytest.approx(SPREAD) == pytest.approx(several.log_sd(8))
    assert one.log_sd(64) > 3 * SPREAD > 3 * several.log_sd(64) / 1.2
    for line in (one, several):  # both held 407 s possible
        assert abs(np.log(407 / line.seconds(64))) < 2.5 * line.log_sd(64)


def test_near_a_time_limit_nothing_is_certain(space: SearchSpace) -> None:
    prediction = Pricing(space).predict([{"num_nodes": 1, "tp": 8, "pp": 1, "mbs": 1, "gas": 4}])
    for start_s, low, high in ((150.0, 0.97, 1.0), (270.0, 0.3, 0.7), (450.0, 0.0, 0.15)):
        chance = float(Pricing(space).in_time(prediction, [trial(1, start_s)])[0])
        assert low < chance < high
