"""Budgets in node-hours: what a trial is expected to take, and which one is still started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run, read_run
from analysis.run.trial import Attempt, Trial
from foundation.quantities import counted, number
from search_spaces import SearchSpace, load_space
from workflows.cli.main import main
from workflows.search.budget import SUCCESSES, Budget, NodeHours, node_hours

Make = Callable[..., SearchSpace]
PRICED = """\
version: 1
name: hours
model: gpt_22b
cluster: frontier
trainer: {builtin: {data: no/such/tokens, precision: bf16}}
parameters:
  num_nodes: [1, 2, 4, 8]
  tp: [4, 8]
  pp: [1, 2]
  mbs: [1, 2]
  gas: [4, 8, 16]
objective: {maximize: tokens_per_second}
trial: {timeout: 20m, early_stop: false}
budget: {node_hours: 1}
"""
CALM = "noise=0,node_noise=0,crash=0,hang=0,launch_failure=0,node_failures_per_day=0"


def add(run: Run, config: Mapping[str, Any], elapsed_s: float | None, **more: Any) -> Trial:
    """A trial that started at 0, with as many nodes as it is wide; None: it runs."""
    number = len(run.trials) + 1
    nodes = tuple(f"n{i}" for i in range(config["num_nodes"]))
    attempt = Attempt(
        1, f"t{number}", nodes, 0.0, ended_t=elapsed_s, kind="ok" if elapsed_s else None
    )
    trial = Trial(number, dict(config), 0.0, attempts=[attempt], **more)
    if elapsed_s:
        trial.kind, trial.objective = "ok", 1.0
    run.trials[number] = trial
    return trial


@pytest.fixture
def priced(tmp_path: Path) -> SearchSpace:
    path = tmp_path / "hours.yaml"
    path.write_text(PRICED)
    return load_space(path)


def config_of(num_nodes: int, gas: int = 8) -> dict[str, Any]:
    return {"num_nodes": num_nodes, "tp": 8, "pp": 1, "mbs": 1, "gas": gas}


def test_without_prices_a_trial_may_take_as_long_as_the_longest_and_before_any_its_timeout(
    make_space: Make,
) -> None:
    space = make_space()
    hours, run = NodeHours(space, 1.0), Run(Path())
    config = {"num_nodes": 2, "tp": 1, "mbs": 1}
    assert hours.expected_s(run, [config]) == [60.0]
    for elapsed_s in (12.0, 20.0, 16.0):
        add(run, config, elapsed_s)
    assert hours.expected_s(run, [config, config]) == [20.0, 20.0]


def test_the_cost_model_says_how_much_longer_one_trial_takes_than_another(
    priced: SearchSpace,
) -> None:
    hours, run = NodeHours(priced, 1.0), Run(Path())
    short, long = config_of(1, gas=4), config_of(1, gas=16)
    step_s = Pricing(priced).predict([short, long]).step_time_s
    steps = 2 + 5
    assert hours.expected_s(run, [short, long]) == pytest.approx([*(steps * step_s)])
    # This machine is half as fast as the model thinks, and a trial starts for 30 s.
    measured_s = 2 * float(step_s[0])
    result = {"step_time_s": {"median": measured_s}}
    add(run, short, 30 + steps * measured_s, result=result)
    expected = [30 + steps * 2 * float(s) for s in step_s]
    assert hours.expected_s(run, [short, long]) == pytest.approx(expected)


def test_no_trial_is_expected_to_outlive_its_timeout(priced: SearchSpace) -> None:
    run = Run(Path())
    result = {"step_time_s": {"median": 1000.0}}
    add(run, config_of(1), 5000.0, result=result)
    assert NodeHours(priced, 1.0).expected_s(run, [config_of(2)]) == [1200.0]


def test_running_trials_keep_what_they_are_expected_to_need(make_space: Make) -> None:
    space, run = make_space(), Run(Path())
    narrow, wide = ({"num_nodes": n, "tp": 1, "mbs": 1} for n in (1, 2))
    add(run, narrow, 36.0)  # 0.01 node-hours
    runs = add(run, wide, None)  # 0.02 expected, half of that held at 18 s
    assert node_hours(run, 18.0) == pytest.approx(0.02)

    def affords(limit: float, config: Mapping[str, Any]) -> bool:
        return NodeHours(space, limit).affords(run, 18.0, [runs.number], config)

    assert affords(0.0401, narrow) and not affords(0.0399, narrow)
    assert affords(0.0501, wide) and not affords(0.0499, wide)


def test_without_a_limit_everything_is_affordable(make_space: Make) -> None:
    hours = NodeHours(make_space(), None)
    assert hours.affords(Run(Path()), 1e9, [], {"num_nodes": 2, "tp": 1, "mbs": 1})
    assert hours.left(Run(Path()), 1e9) == float("inf")


@pytest.mark.parametrize("limit", [0.4, 1.0])
def test_a_search_keeps_its_budget_and_fills_the_rest_with_narrower_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: float
) -> None:
    path, run_dir = tmp_path / "hours.yaml", tmp_path / "run"
    path.write_text(PRICED.replace("node_hours: 1", f"node_hours: {limit}"))
    options = f"{CALM},nodes=8"
    arguments = ["search", str(path), "--launcher", "simulate", "--simulate", options]
    assert main([*arguments, "--run-dir", str(run_dir), "--no-report"]) == 0
    run = read_run(run_dir)
    used = node_hours(run, run.last_t)
    assert 0.9 * limit < used < 1.02 * limit  # times to start vary
    widths = [t.config["num_nodes"] for t in run.trials.values()]
    assert max(widths) == 8 > widths[-1]
    told = f"budget: {counted(limit, 'node-hour')}"
    if used < limit:  # which the last trial's time to start decides
        told = f"{number(limit - used)} left are too few for a further trial"
    assert told in (run.closed or "") and told in capsys.readouterr().out


def test_a_budget_for_less_than_a_trial_is_spent_on_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run_dir = tmp_path / "hours.yaml", tmp_path / "run"
    path.write_text(PRICED.replace("node_hours: 1", "node_hours: 0.001"))
    arguments = ["search", str(path), "--launcher", "simulate", "--simulate", CALM]
    assert main([*arguments, "--run-dir", str(run_dir), "--no-report"]) == 0
    assert len(read_run(run_dir).trials) == 1
    assert "ended: budget: 0.001 node-hours\n" in capsys.readouterr().out


# ---- the expected gain ----


@pytest.mark.parametrize(
    ("successes", "gains", "ends"),
    [
        (SUCCESSES, [0.005, 0.005, 0.005], True),
        (SUCCESSES - 1, [0.005, 0.005, 0.005], False),
        (SUCCESSES, [0.005, 0.02, 0.005], False),
        (SUCCESSES, [0.005, None, 0.005], False),
        (SUCCESSES, [0.02, 0.005, 0.005], False),
        (SUCCESSES, [0.02, 0.005, 0.005, 0.005], True),
    ],
)
def test_a_search_ends_when_three_proposals_in_a_row_promise_little(
    successes: int, gains: list[float | None], ends: bool
) -> None:
    """The last of the gains is that of the proposal in question."""
    run = Run(Path())
    told = [{} if gain is None else {"gain": gain, "left": 2 * gain} for gain in gains]
    before = [*[{}] * (successes - len(told) + 1), *told[:-1]]
    for at, expected in enumerate(before, start=1):
        trial = Trial(at, {}, 0.0, expected=dict(expected), kind="ok", objective=1.0)
        run.trials[at] = trial
    ending = Budget(expected_gain=0.01).not_worth_it(told[-1], run)
    assert (ending is not None) == ends
    told_all = "all untried configurations, 1 %"
    assert ending is None or ("0.5 %" in ending.reason and told_all in ending.reason)
