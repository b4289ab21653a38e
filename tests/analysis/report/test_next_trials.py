"""What the page says to try next: untried, likely to run, and better by what the trials taught."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from analysis.report.next_trials import SHOWN, next_trials, resumption
from analysis.report.outlook import Outlook
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Candidates, load_space
from search_spaces.space import SearchSpace
from support.priced_run import priced_run


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return load_space("tiny_cpu")


def test_what_to_try_next_is_new_and_among_the_best_that_there_are(space: SearchSpace) -> None:
    run, pricing = priced_run(space, 12, {}), Pricing(space)
    found = next_trials(Outlook(run, pricing))
    assert len(found) == SHOWN
    gains = [each.gain for each in found]
    assert gains == sorted(gains, reverse=True) and gains[0] > 0
    tried = [trial.config for trial in run.trials.values()]
    assert not any(each.config in tried for each in found)
    assert all(each.low < each.objective < each.high for each in found)
    every = Candidates(space)
    speeds = pricing.predict(every.configs(every.indices(10**6, np.random.default_rng(0), [], 99)))
    most = float(np.sort(speeds.tokens_per_second[speeds.fits > 0.5])[-1])
    first = pricing.predict([found[0].config])
    assert float(first.tokens_per_second[0]) > 0.95 * most


def test_it_says_what_changes_and_which_parts_of_a_step(space: SearchSpace) -> None:
    run = priced_run(space, 12, {})
    best = run.best
    assert best is not None
    first = next_trials(Outlook(run, Pricing(space)))[0]
    changed = {name: value for name, _, value in first.changes}
    expected = {**best.config, **changed}
    # Without the best trial's parameters that no longer apply.
    assert changed and {name: expected[name] for name in first.config} == first.config
    assert " % → " in first.why
    assert 0 < first.better <= first.runs <= 1


def test_what_failed_time_and_again_is_not_what_to_try_next(space: SearchSpace) -> None:
    run, pricing = priced_run(space, 12, {}), Pricing(space)
    before = next_trials(Outlook(run, pricing))[0]
    for number in range(12, 18):  # what was to come, and what is like it, crashes
        config = next_trials(Outlook(run, pricing))[0].config
        run.trials[number] = Trial(number, dict(config), 0.0, kind="crash")
    after = next_trials(Outlook(run, pricing))[0]
    assert after.config != before.config
    outlook = Outlook(run, pricing)
    again = outlook.members(outlook.candidates.indices_of([before.config]))
    assert float(outlook.posterior(again).feasibility[0]) < 0.8


def test_without_a_success_it_is_what_is_fast_and_likely_to_run(space: SearchSpace) -> None:
    run = priced_run(space, 2, {})
    for trial in run.trials.values():
        trial.kind, trial.objective = "crash", None
    found = next_trials(Outlook(run, Pricing(space)))
    assert found and found[0].gain == 0.0 and found[0].changes == [] and found[0].why == ""


@pytest.mark.parametrize(
    ("code", "limit", "launcher", "words", "command"),
    [
        (None, None, "srun", "is not finished", "meshtune search '/a run/space.yaml'"),
        (3, None, "mpiexec", "is not finished", "space.yaml' --launcher mpiexec"),
        (0, "trials", "local", "trial budget", "space.yaml' --trials 40"),
        (1, "trials", "local", "trial budget", "space.yaml' --trials 40"),  # none succeeded
        (0, "wall_time", "local", "raise budget.wall_time", "--run-dir '/a run'"),
        (0, "node_hours", "", "ended: a reason. To continue, raise budget.node_hours", "COPY.yaml"),
        (
            *(0, "expected_gain", "simulate", "lower budget.expected_gain"),
            "--run-dir '/a run' --launcher simulate",
        ),
        (0, None, "local", None, None),
        (None, None, "ask-tell", None, None),
    ],
)
def test_how_a_search_goes_on_depends_on_what_ended_it(
    code: int | None, limit: str | None, launcher: str, words: str | None, command: str | None
) -> None:
    run = Run(Path("/a run"), launcher=launcher, closed_code=code, closed_by=limit)
    run.closed = None if code is None else "a reason"
    found = resumption(run, run.directory, 40, 22)
    if words is None or command is None:
        assert found is None
        return
    assert found is not None and words in found[0] and command in found[1]
    assert ("--trials" in found[1]) == ("--trials" in command)
