"""The driver when the search is over: finalists are measured again. And what was stopped early.

Trials end as a script says; the statistics are in tests/analysis.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from analysis.run.events import Ended, Event, Started
from analysis.run.fold import read_run
from analysis.run.lines import Lines
from search_spaces import SearchSpace
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.trial import Lease
from support.scripted_launcher import Drivers, ScriptedLauncher, ok
from workflows.search.budget import Budget, node_hours
from workflows.search.driver import Driver, Listener
from workflows.search.stopping import CONTINUE, DONE, Ending
from workflows.search.trials import MAX_RETRIES

Make = Callable[..., SearchSpace]
MakeDriver = Callable[..., Driver]
LUCKY = {1: 60.0, 2: 103.0, 3: 100.0, 4: 20.0}  # at first; then 2 shows that it was lucky


def lucky(number: int, attempt: int, lease: Lease) -> Outcome:
    return ok(LUCKY[number] if attempt == 1 or number != 2 else 90.0)


@pytest.fixture
def make_driver(drivers: Drivers, make_space: Make) -> MakeDriver:
    def make(
        launcher: ScriptedLauncher,
        finalists: str = "{confidence: 0.9, max_repeats: 6}",
        budget: Budget | None = None,
        listen: Listener = lambda *_: None,
        **keys: str,
    ) -> Driver:
        keys = {"parameters": "{num_nodes: [1], mbs: {range: [1, 8]}}", **keys}
        space = make_space(finalists=finalists, trainer="{command: [t]}", **keys)
        return drivers.make(space, launcher, budget or Budget(trials=len(LUCKY)), listen)

    return make


def repeats(driver: Driver) -> dict[int, int]:
    """How often each trial was started again for its figure's sake."""
    trials = driver.state.trials.values()
    counts = {t.number: sum(a.repeat for a in t.attempts) for t in trials}
    return {number: count for number, count in counts.items() if count}


def test_a_lucky_winner_is_found_out(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lucky, 4)
    driver = make_driver(launcher)
    assert driver.run() == Ending("budget: 4 trials", DONE, "trials")
    best = driver.state.best
    assert best is not None and best.number == 3
    assert driver.state.trials[2].objective in (96.5, 90.0)  # the median of two or of three
    assert set(repeats(driver)) == {2, 3}  # the others cannot win
    assert 2 <= sum(repeats(driver).values()) <= 6
    lines = (driver.folder.path / "results.csv").read_text().splitlines()
    assert len(lines) == 1 + 4
    assert launcher.asked == {
        key: key[1] == 1 for key in launcher.asked
    }  # repeats end by themselves


def test_repeats_are_no_trials_of_the_budget_but_their_time_counts(make_driver: MakeDriver) -> None:
    driver = make_driver(ScriptedLauncher(lucky, 4))
    driver.run()
    assert len(driver.state.trials) == 4
    first = {t.number: t.attempts[0] for t in driver.state.trials.values()}
    only_first = sum((a.ended_t or 0.0) - a.started_t for a in first.values()) / 3600
    assert node_hours(driver.state, driver.state.last_t) > only_first


@pytest.mark.parametrize("finalists", ["false", "{max_repeats: 0}"])
def test_they_can_be_switched_off(make_driver: MakeDriver, finalists: str) -> None:
    driver = make_driver(ScriptedLauncher(lucky, 4), finalists)
    assert driver.run().code == DONE
    assert not repeats(driver)


def test_no_more_repeats_than_asked_for(make_driver: MakeDriver) -> None:
    driver = make_driver(ScriptedLauncher(lucky, 4), "{confidence: 0.999, max_repeats: 3}")
    driver.run()
    assert sum(repeats(driver).values()) == 3
    again = make_driver(ScriptedLauncher(lucky, 4), "{confidence: 0.999, max_repeats: 3}")
    assert again.run().code == DONE  # nothing is left to do, today or tomorrow
    assert sum(repeats(again).values()) == 3


def test_several_objectives_have_no_winner_to_settle(make_driver: MakeDriver) -> None:
    objective = "[{maximize: speed}, {minimize: num_nodes}]"
    parameters = "{num_nodes: [1, 2], mbs: {range: [1, 8]}}"
    driver = make_driver(ScriptedLauncher(lucky, 4), objective=objective, parameters=parameters)
    assert driver.run().code == DONE
    assert not repeats(driver)


def test_an_interrupted_search_measures_nothing_again(make_driver: MakeDriver) -> None:
    def drain(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Ended) and event.trial == 2:
            driver.drain(Ending("the allocation ends", CONTINUE))

    driver = make_driver(ScriptedLauncher(lucky, 4), listen=drain, budget=Budget(trials=8))
    assert driver.run().code == CONTINUE
    assert not repeats(driver)


def test_no_time_is_left_for_finalists_when_it_is_spent(make_driver: MakeDriver) -> None:
    def spend(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Ended) and all(t.ended for t in driver.state.trials.values()):
            driver.journal.clock = lambda: time.time() + 3600

    budget = Budget(trials=4, wall_time_s=1800)
    driver = make_driver(ScriptedLauncher(lucky, num_nodes=1), budget=budget, listen=spend)
    assert "of wall time" in driver.run().reason
    assert not repeats(driver)


def test_what_still_runs_may_win_and_comes_first(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lucky, 4)
    launcher.slow = {1}
    launcher.gate.clear()
    ends: list[int] = []

    def note(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Ended):
            ends.append(event.trial)
            if len(ends) == 3:
                launcher.gate.set()

    driver = make_driver(launcher, listen=note)
    driver.run()
    events = list(Lines(driver.folder.path / "journal.jsonl"))
    kinds = [e["event"] + ("+" if e.get("repeat") else "") for e in events]
    assert kinds[: kinds.index("started+")].count("ended") == 4
    assert ends[3] == 1 and len(ends) > 4


def test_an_allocation_that_ends_before_the_finalists_leaves_them_to_the_next(
    make_driver: MakeDriver,
) -> None:
    launcher = ScriptedLauncher(lucky, 4)

    def end_allocation(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Ended) and all(t.ended for t in driver.state.trials.values()):
            launcher.left_s = 1.0

    driver = make_driver(launcher, listen=end_allocation)
    assert driver.run().code == CONTINUE
    assert not repeats(driver)
    driver = make_driver(ScriptedLauncher(lucky, 4))
    assert driver.run() == Ending("budget: 4 trials", DONE, "trials")
    assert repeats(driver)
    assert driver.state.best is not None and driver.state.best.number == 3


def test_a_stop_cancels_a_repeat_and_the_next_session_measures_it(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lucky, 4)

    def stop(event: Event | str | None, driver: Driver) -> None:
        trials = driver.state.trials
        if len(trials) == len(LUCKY) and all(t.ended for t in trials.values()):
            launcher.gate.clear()
            launcher.slow = {2, 3}  # what starts from now on is a repeat
        if isinstance(event, Started) and trials[event.trial].ended:
            driver.stop(Ending("stopped by SIGINT", 130))

    driver = make_driver(launcher, listen=stop)
    assert driver.run().code == 130
    cancelled = [a for t in driver.state.trials.values() for a in t.attempts if a.repeat]
    assert cancelled and {a.kind for a in cancelled} == {"cancelled"}
    assert all(t.ok for t in driver.state.trials.values())  # their first results stand
    driver = make_driver(ScriptedLauncher(lucky, 4))
    assert driver.run().code == DONE
    assert driver.state.best is not None and driver.state.best.number == 3


def test_a_repeat_that_a_killed_driver_left_is_taken_or_run_again(make_driver: MakeDriver) -> None:
    make_driver(ScriptedLauncher(lucky, 4), "false").run()
    driver = make_driver(ScriptedLauncher(lucky, 4))
    for number in (2, 3):
        driver.journal.write(Started(trial=number, attempt=2, name=f"meshtune-test-{number:04d}-2",
            nodes=[f"n{number}"], repeat=True,
        ))  # fmt: skip
    finished = driver.folder.trial(2) / "result.json"
    finished.write_text('{"status": "ok", "speed": 89.0}')
    (driver.folder.trial(3) / "result.json").unlink(missing_ok=True)
    assert driver.run().code == DONE
    trials = driver.state.trials
    assert trials[2].measurements[:2] == [103.0, 89.0]
    assert trials[3].attempts[1].kind == "preempted"
    assert trials[3].attempts[2].kind == "ok"
    assert read_run(driver.folder.path).trials[2].objective == trials[2].objective


def test_a_finalist_whose_nodes_always_fail_is_not_tried_for_ever(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return lucky(number, attempt, lease) if attempt == 1 else Outcome(Kind.NODE_FAILURE)

    driver = make_driver(ScriptedLauncher(script, 4))
    assert driver.run().code == DONE
    assert set(repeats(driver).values()) == {MAX_RETRIES + 1}
    assert driver.state.best is not None and driver.state.best.number == 2


def test_a_winner_that_fails_when_it_is_measured_again_is_none(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number == 2 and attempt > 1:
            return Outcome(Kind.OOM, message="CUDA out of memory")
        return lucky(number, attempt, lease)

    driver = make_driver(ScriptedLauncher(script, 4))
    assert driver.run().code == DONE
    assert driver.state.trials[2].kind == "oom"
    assert repeats(driver)[2] == 2
    assert driver.state.best is not None and driver.state.best.number == 3


def test_a_finalist_wider_than_what_is_left_does_not_hold_up_the_end(
    make_driver: MakeDriver,
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if attempt > 1:
            return Outcome(Kind.NODE_FAILURE, lost_nodes=("n0", "n1", "n2"))
        return ok(100.0 + number)

    driver = make_driver(
        ScriptedLauncher(script, 4), parameters="{num_nodes: [2], mbs: {range: [1, 8]}}"
    )
    assert driver.run().code == DONE
    assert 1 <= sum(repeats(driver).values()) <= 2


# ---- stopped early ----


def test_what_was_stopped_early_is_told_and_never_the_best(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number == 2:
            return Outcome(
                Kind.OK,
                {"speed": 500.0},
                "stopped early: too slow",
                stopped_early=True,
                saved_s=30.0,
            )
        return lucky(number, attempt, lease)

    parameters = "{num_nodes: [2], mbs: {range: [1, 8]}}"
    driver = make_driver(ScriptedLauncher(script, 4), "false", parameters=parameters)
    driver.run()
    trial = read_run(driver.folder.path).trials[2]
    assert (trial.kind, trial.objective, trial.stopped_early) == ("ok", 500.0, True)
    assert trial.saved_node_s == 60.0
    assert trial.message == "stopped early: too slow"
    assert driver.state.best is not None and driver.state.best.number == 3
    row = (driver.folder.path / "results.csv").read_text().splitlines()[2]
    assert row.split(",")[2:5] == ["500.0", "2", "DONE"]
