"""A search whose attempts fail one after the other is ended."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from analysis.run.events import Ended, Event
from search_spaces import SearchSpace
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.simulated.clock import VirtualClock
from slurm.trial import Lease
from support.scripted_launcher import Script, ScriptedLauncher, ok
from workflows.search.driver import Driver
from workflows.search.stopping import CONTINUE, DONE, FAILED, Ending
from workflows.search.trials import MAX_RETRIES

Make = Callable[..., SearchSpace]
MakeDriver = Callable[..., Driver]


def virtual(script: Script, num_nodes: int = 2) -> ScriptedLauncher:
    """A launcher in whose time pauses cost nothing."""
    launcher = ScriptedLauncher(script, num_nodes)
    launcher.clock = VirtualClock(0.0)
    return launcher


def test_a_search_whose_trials_all_crash_is_ended(make_driver: MakeDriver) -> None:
    crash = Outcome(Kind.CRASH, message="KeyError: 'lr'")
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: crash), trials=30)
    ending = driver.run()
    assert ending.code == FAILED
    assert "KeyError: 'lr'" in ending.reason
    assert 8 <= len(driver.state.trials) <= 10


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Kind.CRASH, message="exit code 1; ModuleNotFoundError: No module named 'megatron'"),
        Outcome(Kind.CRASH, message="exit code 1; FileNotFoundError: [Errno 2] ... 'data.bin'"),
        Outcome(Kind.CRASH, message="exit code 0, but the pattern of 'loss' matched 'x'"),
        Outcome(Kind.CRASH, message="exit code 0, but no pattern matched (step_time_s); neither"),
        Outcome(Kind.CRASH, message="exit code 1; KeyError: 'DATA_ROOT'"),
        Outcome(Kind.OK, result={"status": "ok", "another": 1.0}),
    ],
)
def test_a_mistake_of_the_space_itself_ends_the_search_at_its_first_trial(
    make_driver: MakeDriver, outcome: Outcome
) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: outcome, 1)
    driver = make_driver(launcher, trials=30)
    ending = driver.run()
    assert ending.code == FAILED
    assert "every configuration would fail so" in ending.reason
    assert len(driver.state.trials) == 1


def test_what_a_mistake_made_fail_runs_when_it_is_mended(make_driver: MakeDriver) -> None:
    """The first trial is the one that is expected to be best: it must not count as a bad one."""
    missing = Outcome(Kind.CRASH, message="exit code 1; KeyError: 'DATA_ROOT'")
    for n in range(MAX_RETRIES + 2):
        launcher = ScriptedLauncher(lambda n, a, lease: missing, 1)
        assert make_driver(launcher, trials=1).run().code == FAILED, n
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok(), 1), trials=2)
    driver.run()
    assert [trial.kind for trial in driver.state.trials.values()] == ["ok", "ok"]
    first = driver.state.trials[1].attempts
    assert [a.kind for a in first[: MAX_RETRIES + 3]] == ["crash"] * (MAX_RETRIES + 2) + ["ok"]


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
@pytest.mark.parametrize("bad", [{1}, {1, 2}, {1, 2, 3}, {1, 3, 4}, {4}])
def test_a_configuration_whose_failure_looks_like_everybodys_holds_nobody_up(
    make_driver: MakeDriver, num_nodes: int, bad: set[int]
) -> None:
    """It alone lacks a module: others run until one succeeds, and then the crash is its own."""
    missing = Outcome(Kind.CRASH, message="exit code 1; No module named 'flash_attn'")
    launcher = ScriptedLauncher(lambda n, a, lease: missing if n in bad else ok(), num_nodes)
    launcher.success_s = 0.1
    codes = [make_driver(launcher, trials=4).run().code]
    while codes[-1] != DONE and len(codes) <= len(bad):
        codes.append(make_driver(launcher, trials=4).run().code)
    assert codes[-1] == DONE and set(codes[:-1]) <= {FAILED}
    trials = make_driver(launcher, trials=4).state.trials
    assert {n: t.kind for n, t in trials.items()} == {
        n: "crash" if n in bad else "ok" for n in range(1, 5)
    }


def test_a_crash_like_everybodys_waits_behind_one_new_configuration(
    make_driver: MakeDriver,
) -> None:
    """A journal with such crashes alone tells what runs next: the same whoever reads it."""
    missing = Outcome(Kind.CRASH, message="exit code 1; No module named 'flash_attn'")
    for trials in ([1], [1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 3]):
        driver = make_driver(ScriptedLauncher(lambda n, a, lease: missing, 1), trials=3)
        assert "every configuration would fail so" in driver.run().reason
        assert [*driver.state.trials] == trials
    # Nothing new is left: the trial with the fewest crashes was next.
    assert [len(t.attempts) for t in driver.state.trials.values()] == [2, 2, 1]


@pytest.mark.parametrize(("suspects", "trials"), [((), 1), (("n1",), 2)])
def test_a_program_that_is_missing_on_every_node_ends_the_search_at_once(
    make_driver: MakeDriver, suspects: tuple[str, ...], trials: int
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        message = "meshtune: n1: no program train"
        return Outcome(Kind.LAUNCH_FAILURE, message=message, suspect_nodes=suspects)

    launcher = virtual(script, 1)
    ending = make_driver(launcher, trials=trials).run()
    assert ("every configuration would fail so" in ending.reason) == (not suspects)


def test_after_a_success_a_missing_file_is_one_configurations_own(make_driver: MakeDriver) -> None:
    missing = Outcome(Kind.CRASH, message="exit code 1; FileNotFoundError: 'cache'")
    launcher = ScriptedLauncher(lambda n, a, lease: ok() if n == 1 else missing, 1)
    driver = make_driver(launcher, trials=5)
    driver.run()
    assert sum(trial.ended for trial in driver.state.trials.values()) == 5


def test_launches_that_all_fail_end_a_search_that_had_worked(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return ok() if number == 1 else Outcome(Kind.LAUNCH_FAILURE, message="no controller")

    launcher = virtual(script)
    driver = make_driver(launcher, trials=30)
    began_s = launcher.clock.monotonic()
    ending = driver.run()
    assert ending.code == CONTINUE
    assert "no controller" in ending.reason
    # Eight launches in a row, however many were tried at once, with pauses that grow.
    assert launcher.clock.monotonic() - began_s >= 0 + 2 + 4 + 8 + 16 + 32 + 60
    # Nothing is wrong with trials of which none can be launched.
    assert sum(t.ended for t in driver.state.trials.values()) == 1


def test_crashes_and_failed_launches_in_turn_are_counted_together_and_named_so(
    make_driver: MakeDriver,
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number % 2:
            return Outcome(Kind.CRASH, message="no module")
        return Outcome(Kind.LAUNCH_FAILURE, message="no controller")

    ending = make_driver(virtual(script), trials=30).run()
    assert ending.code == FAILED
    assert "the last 8 attempts crashed or could not start" in ending.reason


def test_crashes_before_a_failed_launch_do_not_end_a_search_that_had_worked(
    make_driver: MakeDriver,
) -> None:
    """Crashes speak of their configurations: only eight launches in a row mean that none works."""

    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number == 1:
            return ok()
        if number == 11 and attempt == 1:
            return Outcome(Kind.LAUNCH_FAILURE, message="port taken")
        return Outcome(Kind.CRASH)

    driver = make_driver(ScriptedLauncher(script, num_nodes=1), trials=11)
    assert driver.run().code == DONE
    assert len(driver.state.trials) == 11
    assert driver.state.trials[11].kind == "crash"


def test_failures_while_a_search_is_being_stopped_do_not_change_why_it_ends(
    make_driver: MakeDriver,
) -> None:
    crash = Outcome(Kind.CRASH, message="killed by the same Ctrl-C")

    def stop(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Ended) and event.trial == 8:
            driver.stop(Ending("stopped by SIGINT", 130))

    driver = make_driver(ScriptedLauncher(lambda n, a, lease: crash, num_nodes=1), 30, stop)
    assert driver.run() == Ending("stopped by SIGINT", 130)


def test_launches_that_fail_for_seconds_cost_no_trial_its_retries(make_driver: MakeDriver) -> None:
    """As on a controller that was just started anew: it answers, and creates no step yet."""

    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if 10.0 < clock.time() < 40.0:
            return Outcome(Kind.LAUNCH_FAILURE, message="Memory required by task is not available")
        clock.sleep(clock.time() + 5.0, f"{number}-{attempt}", threading.Event())
        return ok()

    launcher = virtual(script)
    clock = launcher.clock
    assert isinstance(clock, VirtualClock)
    driver = make_driver(launcher, trials=12)
    assert driver.run() == Ending("budget: 12 trials", DONE, "trials")
    trials = driver.state.trials.values()
    assert [t.kind for t in trials] == ["ok"] * 12
    failed = [a for t in trials for a in t.attempts if a.kind == "launch_failure"]
    # Two at once in each of a few waves, after pauses of 0, 2, 4, 8 and 16 seconds.
    assert 5 <= len(failed) <= 12
    assert clock.time() < 120.0


def test_one_failed_launch_holds_nobody_up(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        first = (number, attempt) == (1, 1)
        return Outcome(Kind.LAUNCH_FAILURE, message="port taken") if first else ok()

    launcher = virtual(script, num_nodes=1)
    driver = make_driver(launcher)
    assert driver.run().code == DONE
    assert launcher.clock.monotonic() == 0.0


def test_a_trial_that_alone_cannot_be_launched_is_given_up(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return Outcome(Kind.LAUNCH_FAILURE, message="no such GPU") if number == 2 else ok()

    driver = make_driver(virtual(script), trials=6)
    assert driver.run() == Ending("budget: 6 trials", DONE, "trials")
    assert driver.state.trials[2].kind == "launch_failure"
    assert len(driver.state.trials[2].attempts) == MAX_RETRIES + 1


@pytest.mark.parametrize(("successes", "code"), [(0, FAILED), (2, CONTINUE)])
def test_a_search_whose_attempts_are_all_ended_by_others_is_ended(
    make_driver: MakeDriver, successes: int, code: int
) -> None:
    """No configuration is to blame, so that the budget would never be used up."""

    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        killed = Outcome(Kind.PREEMPTED, message="rank 0 was sent signal 9 from outside")
        return ok() if number <= successes else killed

    driver = make_driver(virtual(script), trials=30)
    ending = driver.run()
    assert ending.code == code
    assert "the last 8 trials were given up; the last one: rank 0 was sent" in ending.reason
    given_up = [t for t in driver.state.trials.values() if t.ended and not t.ok]
    assert {(t.kind, len(t.attempts)) for t in given_up} == {("preempted", MAX_RETRIES + 1)}
    assert 8 <= len(given_up) <= 10


def test_trials_that_are_given_up_among_others_end_no_search(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return ok() if number % 3 == 0 else Outcome(Kind.PREEMPTED)

    driver = make_driver(virtual(script), trials=6)
    assert driver.run() == Ending("budget: 6 trials", DONE, "trials")
    assert sum(t.kind == "preempted" for t in driver.state.trials.values()) >= 8
