"""A share of the trials is given to what drives the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.acquisition import remaining_deviation
from analysis.prediction.pricing import Pricing
from analysis.prediction.residual import ResidualProcess
from analysis.prediction.trust import log_odds, residual_log_sd, trusted
from analysis.run.fold import Run, read_run
from analysis.run.trial import Trial
from search_spaces import SearchSpace, load_space
from workflows.cli.main import main
from workflows.optimizer.registry import make_policy

ANY = 2**31


def exploring(name: str, share: float) -> SearchSpace:
    space = load_space(name)
    return replace(space, budget=space.budget.model_copy(update={"explore": share}))


def searched(space: SearchSpace, count: int, policy: str = "meshtune") -> Run:
    """Trials of a search whose every trial comes out as it is priced, but for a little noise."""
    pricing, rng = Pricing(space), np.random.default_rng(0)
    run, chooser = Run(Path()), make_policy(space, 0, policy)
    for number in range(1, count + 1):
        proposal = chooser.propose(run, ANY)
        assert proposal is not None and space.first_violation(proposal.config) is None
        trial = Trial(number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected)
        prediction = pricing.predict([trial.config])
        trial.kind, trial.ended_t = "ok", float(number)
        trial.objective = float(prediction.tokens_per_second[0] * np.exp(rng.normal(0, 0.02)))
        trial.result = {"step_time_s": {"median": float(prediction.step_time_s[0])}}
        run.trials[number] = trial
    return run


def explored(run: Run) -> list[int]:
    return [number for number, trial in run.trials.items() if trial.explores]


def test_the_share_is_kept_and_what_is_explored_is_where_the_model_knows_least() -> None:
    run = searched(exploring("tiny_cpu", 0.34), 9)
    assert explored(run) == [3, 6, 9]
    assert len({tuple(trial.config.items()) for trial in run.trials.values()}) == 9

    def width(expected: Mapping[str, float]) -> float:
        return float(np.log(expected["high"] / expected["low"]))

    for number in explored(run):
        assert "least sure" in run.trials[number].why and run.trials[number].expected["fits"] >= 0.5
        before = Run(Path(), trials={n: run.trials[n] for n in range(1, number)})
        promising = make_policy(exploring("tiny_cpu", 0.0), 0).propose(before, ANY)
        assert promising is not None
        assert width(run.trials[number].expected) > width(promising.expected)


def test_what_a_pending_trial_will_tell_is_counted_as_known() -> None:
    rng = np.random.default_rng(0)
    measured, pending, new = (rng.normal(size=(count, 2)) for count in (3, 2, 6))
    new[0] = pending[0]
    before = ResidualProcess(measured, np.zeros(3), 0.1)
    after = ResidualProcess(np.concatenate([measured, pending]), np.zeros(5), 0.1)
    there = np.concatenate([new, pending])
    left = remaining_deviation(before, there, np.zeros((4, len(there))), len(new))
    assert left == pytest.approx(after.at(new)[1], rel=1e-3, abs=1e-6)
    assert left[0] < 0.5 * before.at(new)[1][0]
    # What other models say of both is learnt with it.
    opinions = np.tile([[0.3], [-0.3]], len(there))
    assert np.all(remaining_deviation(before, there, opinions, len(new)) < 0.15)
    assert np.all(remaining_deviation(before, new, opinions[:, :6], len(new)) > 0.29)


def test_explorations_are_no_evidence_on_whether_the_model_may_choose() -> None:
    space = exploring("tiny_cpu", 0.5)
    run, pricing = searched(space, 8), Pricing(space)
    before = log_odds(run), residual_log_sd(run, 0.1)
    for number in explored(run):
        run.trials[number].objective = 0.01 * (run.trials[number].objective or 0.0)
    assert (log_odds(run), residual_log_sd(run, 0.1)) == before
    assert trusted(run, pricing)


def test_by_default_nothing_is_explored() -> None:
    space = load_space("tiny_cpu")
    assert space.budget.explore == 0 and not explored(searched(space, 4))


@pytest.mark.parametrize("policy", ["random", "sobol"])
def test_without_a_price_it_is_what_lies_farthest_from_what_was_tried(
    tmp_path: Path, policy: str
) -> None:
    (tmp_path / "own.yaml").write_text(
        "version: 1\ntrainer: {command: [train, '{a}', '{b}']}\nobjective: {maximize: speed}\n"
        "parameters: {a: {range: [0, 8]}, b: {range: [0, 8]}}\nbudget: {explore: 0.5}\n"
    )
    space = load_space(tmp_path / "own.yaml")
    run = Run(Path(), trials={1: Trial(1, {"a": 0, "b": 0}, 0.0, policy, ended_t=0.0, kind="oom")})
    proposal = make_policy(space, 0, policy).propose(run, ANY)
    assert proposal is not None and proposal.by == Trial.EXPLORATION
    assert proposal.config == {"a": 8, "b": 8}
    assert make_policy(space, 0, policy).propose(run, ANY) == proposal


def test_a_search_that_is_resumed_keeps_the_share_or_says_that_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path(str(load_space("tiny_cpu").file)).read_text()
    Path("own.yaml").write_text(own)
    command = ["--launcher", "simulate", "--no-report", "--run-dir", "run", "--policy", "random"]
    assert main(["search", "own.yaml", "--trials", "4", "--explore", "0.5", *command]) == 0
    assert explored(read_run("run")) == [2, 4]
    assert main(["search", "run/space.yaml", "--trials", "6", *command]) == 0
    assert explored(read_run("run")) == [2, 4, 6]
    assert main(["search", "own.yaml", "--trials", "8", *command]) == 0
    assert explored(read_run("run")) == [2, 4, 6, 8]
    assert "explorations" not in capsys.readouterr().out
    Path("own.yaml").write_text(own.replace("budget:", "budget:\n  explore: 0.0"))
    assert main(["search", "own.yaml", "--trials", "9", *command]) == 0
    assert "explorations: 0 of the trials from now on, 0.5 so far" in capsys.readouterr().out
    assert load_space("run/space.yaml").budget.explore == 0.0
    with pytest.raises(SystemExit):
        main(["search", "tiny_cpu", "--explore", "1.5", *command])


def test_what_crashed_nearby_makes_an_exploration_less_likely_to_run() -> None:
    space = exploring("tiny_cpu", 1.0)
    pricing, chooser = Pricing(space), make_policy(space, 0, "meshtune")
    run = searched(exploring("tiny_cpu", 0.0), 6)
    for number in range(7, 15):
        proposal = chooser.propose(run, ANY)
        assert proposal is not None and proposal.by == Trial.EXPLORATION
        crashed = Trial(number, proposal.config, 0.0, proposal.by, expected=proposal.expected)
        crashed.kind, crashed.ended_t = "crash", float(number)
        run.trials[number] = crashed
    crashes = [run.trials[number] for number in range(8, 15)]
    memory = pricing.calibrated(run.trials.values()).fits(
        pricing.jobs_of([t.config for t in crashes])
    )
    stated = np.array([trial.expected["fits"] for trial in crashes])
    assert np.all(stated >= 0.5)
    assert np.any(stated < 0.95 * memory)  # what is far from all crashes is as likely as before
