"""A search whose attempts fail one after the other is ended."""

from __future__ import annotations

from collections.abc import Callable

from analysis.run.events import Ended, Event
from search_spaces import SearchSpace
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.trial import Lease
from support.scripted_launcher import ScriptedLauncher, ok
from workflows.search.driver import Driver, Tick
from workflows.search.stopping import CONTINUE, DONE, FAILED, Ending

Make = Callable[..., SearchSpace]
MakeDriver = Callable[..., Driver]


def test_a_search_whose_trials_all_crash_is_ended(make_driver: MakeDriver) -> None:
    crash = Outcome(Kind.CRASH, message="No module named 'megatron'")
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: crash), trials=30)
    ending = driver.run()
    assert ending.code == FAILED
    assert "No module named 'megatron'" in ending.reason
    assert len(driver.state.trials) <= 10


def test_launches_that_all_fail_end_a_search_that_had_worked(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return ok() if number == 1 else Outcome(Kind.LAUNCH_FAILURE, message="no controller")

    driver = make_driver(ScriptedLauncher(script), trials=30)
    ending = driver.run()
    assert ending.code == CONTINUE
    assert "no controller" in ending.reason


def test_crashes_and_failed_launches_in_turn_are_counted_together_and_named_so(
    make_driver: MakeDriver,
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number % 2:
            return Outcome(Kind.CRASH, message="no module")
        return Outcome(Kind.LAUNCH_FAILURE, message="no controller")

    ending = make_driver(ScriptedLauncher(script), trials=30).run()
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

    def stop(event: Event | Tick, driver: Driver) -> None:
        if isinstance(event, Ended) and event.trial == 8:
            driver.stop(Ending("stopped by SIGINT", 130))

    driver = make_driver(ScriptedLauncher(lambda n, a, lease: crash, num_nodes=1), 30, stop)
    assert driver.run() == Ending("stopped by SIGINT", 130)
