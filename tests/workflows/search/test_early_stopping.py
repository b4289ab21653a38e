"""Which running trials are stopped: nothing within 5 % of the best, and nothing by chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from search_spaces import SearchSpace
from slurm.outcome.step_log import EarlyStop
from workflows.search.early_stopping import EarlyStopping

Make = Callable[..., SearchSpace]
CONFIG = {"num_nodes": 1, "tp": 1, "mbs": 1}
BUILTIN = "{builtin: {data: python-source, precision: fp32}}"


def steps_of(speeds: Sequence[float], warmup: Sequence[float] = (1.0, 1.0)) -> list[dict[str, Any]]:
    every = [*warmup, *speeds]
    return [
        {"step": i, "speed": speed, "step_time_s": 1 / speed}
        for i, speed in enumerate(every, start=1)
    ]


def judge_of(space: SearchSpace, best: float, times_s: Sequence[float] = ()) -> EarlyStopping:
    """With a best trial, number 7, of that objective and these step times."""
    run = Run(Path(), goals=[(space.objective.key, space.objective.maximize)])
    trial = run.trials[7] = Trial(7, dict(CONFIG), 0.0, kind="ok", objective=best)
    trial.result = {"step_time_s": {"median": 1.0, "all": list(times_s)}} if times_s else {}
    judge = EarlyStopping(space)
    judge.update(run)
    return judge


def test_a_trial_far_behind_is_stopped_after_two_measured_steps(make_space: Make) -> None:
    judge = judge_of(make_space(), 100.0)
    assert judge.judge(CONFIG, steps_of([50.0])) is None  # one step has no spread
    early = judge.judge(CONFIG, steps_of([50.0, 50.5]))
    assert early is not None
    assert "2 steps were 1.99x as slow as the best, trial 7" in early.message
    assert early.result["speed"] == pytest.approx(50.25)
    assert early.result["step_time_s"]["all"] == [1 / 50.0, 1 / 50.5]


def test_steps_of_the_warm_up_never_count(make_space: Make) -> None:
    judge = judge_of(make_space(trial="{timeout: 60s, warmup_steps: 4}"), 100.0)
    assert judge.judge(CONFIG, steps_of([], warmup=[1.0, 1.0, 1.0, 1.0])) is None
    assert judge.judge(CONFIG, steps_of([100.0, 100.0], warmup=[1.0] * 4)) is None
    early = judge.judge(CONFIG, steps_of([50.0, 50.0], warmup=[1.0] * 4))
    assert early is not None and early.result["speed"] == 50.0


def test_nothing_is_stopped_before_there_is_a_best(make_space: Make) -> None:
    judge = EarlyStopping(make_space())
    judge.update(Run(Path()))
    assert judge.judge(CONFIG, steps_of([1.0, 1.0, 1.0])) is None


def test_steps_that_scatter_widely_are_not_believed(make_space: Make) -> None:
    judge = judge_of(make_space(), 100.0)
    assert judge.judge(CONFIG, steps_of([20.0, 60.0])) is None
    assert judge.judge(CONFIG, steps_of([40.0, 40.1])) is not None


def test_a_best_whose_own_steps_scatter_is_a_low_bar(make_space: Make) -> None:
    steps = steps_of([60.0, 60.1, 60.0])
    assert judge_of(make_space(), 100.0, [1.0, 1.01, 1.0]).judge(CONFIG, steps) is not None
    assert judge_of(make_space(), 100.0, [1.0, 2.0, 0.5]).judge(CONFIG, steps) is None


@pytest.mark.parametrize("between", [0.0, 0.03])
@pytest.mark.parametrize("within", [0.0, 0.02, 0.1])
def test_nothing_within_five_percent_of_the_best_is_stopped(
    make_space: Make, between: float, within: float
) -> None:
    space, rng, stopped = make_space(), np.random.default_rng(0), 0
    for _ in range(400):
        luck, own = np.exp(between * rng.standard_normal(2))
        times_s = np.exp(within * rng.standard_normal(5))
        judge = judge_of(space, 100.0 * luck / float(np.median(times_s)), list(times_s))
        speeds = 95.1 * own * np.exp(within * rng.standard_normal(5))
        for count in range(1, 6):
            stopped += judge.judge(CONFIG, steps_of(speeds[:count])) is not None
    assert stopped <= (0 if not within and not between else 2)


def test_what_is_too_slow_beyond_all_noise_is_stopped(make_space: Make) -> None:
    rng, stopped = np.random.default_rng(0), 0
    judge = judge_of(make_space(), 100.0, list(np.exp(0.02 * rng.standard_normal(5))))
    for _ in range(100):
        speeds = 40.0 * np.exp(0.02 * rng.standard_normal(3))
        stopped += judge.judge(CONFIG, steps_of(speeds)) is not None
    assert stopped >= 95


def test_a_better_best_raises_the_bar_and_a_revised_one_lowers_it(make_space: Make) -> None:
    run = Run(Path(), goals=[("speed", True)])
    judge, steps = EarlyStopping(make_space()), steps_of([50.0, 50.0])

    def end(number: int, speed: float) -> None:
        trial = run.trials.setdefault(number, Trial(number, dict(CONFIG), 0.0))
        trial.kind, trial.objective = "ok", speed
        trial.attempts.append(Attempt(1, "", (), 0.0, ended_t=1.0, kind="ok", objective=speed))
        judge.update(run, trial)

    end(1, 51.0)
    assert judge.judge(CONFIG, steps) is None
    end(2, 49.0)
    end(3, 100.0)
    assert judge.judge(CONFIG, steps) is not None
    run.trials[3].attempts.append(
        Attempt(2, "", (), 1.0, ended_t=2.0, kind="ok", repeat=True, objective=12.0)
    )
    run.trials[3].objective = 56.0
    judge.update(run, run.trials[3])
    assert judge.judge(CONFIG, steps) is None
    run.trials[3].kind, run.trials[3].objective = "oom", None  # it failed when measured again
    judge.update(run, run.trials[3])
    assert judge.judge(CONFIG, steps_of([30.0, 30.0])) is not None


@pytest.mark.parametrize(
    ("objective", "figure", "best"),
    [
        ("{minimize: peak_memory_bytes}", "peak_memory_bytes", 1e9),
        ("{minimize: loss}", "loss", 2.0),
        ("[{maximize: speed}, {minimize: num_nodes}]", "speed", 100.0),
    ],
)
def test_what_is_no_speed_is_never_stopped_early(
    make_space: Make, objective: str, figure: str, best: float
) -> None:
    space = make_space(objective=objective)
    worse = best / 100 if space.objective.maximize else best * 100
    steps = [{"step": i, figure: worse} for i in range(1, 6)]
    assert judge_of(space, best).judge(CONFIG, steps) is None


def test_it_can_be_switched_off(make_space: Make) -> None:
    space = make_space(trial="{timeout: 60s, early_stop: false}")
    assert judge_of(space, 100.0).judge(CONFIG, steps_of([1.0, 1.0, 1.0])) is None


def test_steps_that_do_not_tell_the_objective_stop_nothing(make_space: Make) -> None:
    judge = judge_of(make_space(), 100.0)
    silent = [{"step": i, "step_time_s": 9.0} for i in range(1, 6)]
    assert judge.judge(CONFIG, silent) is None
    odd = [{"step": i, "speed": value} for i, value in enumerate(["x", None, True, math.nan, -1])]
    assert judge.judge(CONFIG, odd) is None


def test_step_times_are_compared_where_they_are_the_objective(make_space: Make) -> None:
    judge = judge_of(make_space(objective="{minimize: step_time_s.median}"), 1.0)
    early = judge.judge(CONFIG, [{"step": i, "step_time_s": 2.5} for i in range(1, 5)])
    assert early is not None
    assert early.result["step_time_s"] == {"median": 2.5, "all": [2.5, 2.5]}


def test_a_figure_that_follows_from_a_speed_is_one(make_space: Make) -> None:
    judge = judge_of(make_space(objective="{minimize: node_seconds_per_token}"), 0.01)
    slow = [{"step": i, "tokens_per_second": 20.0} for i in range(1, 5)]  # 0.05
    early = judge.judge(CONFIG, slow)
    assert early is not None and "5.00x as slow" in early.message
    assert judge.judge({**CONFIG, "num_nodes": 2}, slow) is not None


@pytest.mark.parametrize(("command", "saved_s"), [("[t]", 0.0), ("[t, '{measured_steps}']", 1.5)])
def test_saved_time_is_told_where_the_number_of_steps_is_known(
    make_space: Make, command: str, saved_s: float
) -> None:
    space = make_space(trainer=f"{{command: {command}}}")  # two steps of warm-up, then five
    early = judge_of(space, 8.0).judge(CONFIG, steps_of([2.0, 2.0]))
    assert isinstance(early, EarlyStop)
    assert early.saved_s == pytest.approx(saved_s)
