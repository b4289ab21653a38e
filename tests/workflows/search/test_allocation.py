"""A search whose allocation is taken away, or whose scheduler does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from analysis.run.events import Event
from search_spaces import SearchSpace
from slurm.launcher import AllocationState
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.simulated.clock import VirtualClock
from slurm.trial import Lease
from support.scripted_launcher import Script, ScriptedLauncher, ok
from workflows.search.allocation import MAX_SILENCE_S
from workflows.search.driver import Driver
from workflows.search.stopping import CONTINUE, DONE, Ending
from workflows.search.trials import MAX_RETRIES

Make = Callable[..., SearchSpace]
MakeDriver = Callable[..., Driver]
HELD, SILENT, GONE = AllocationState.HELD, AllocationState.SILENT, AllocationState.GONE


class Lent(ScriptedLauncher):
    """A launcher on nodes that a scheduler lends, in virtual time.

    Attributes:
        states: what the scheduler says from which time on; the last one that has come holds.
    """

    def __init__(self, script: Script, num_nodes: int = 1) -> None:
        super().__init__(script, num_nodes)
        self.clock: VirtualClock = VirtualClock(0.0)
        self.states = {0.0: HELD}

    def allocation_state(self) -> AllocationState:
        now_s = self.clock.monotonic()
        return [state for since_s, state in self.states.items() if since_s <= now_s][-1]


@pytest.mark.parametrize("kind", [Kind.CRASH, Kind.TIMEOUT, Kind.NODE_FAILURE, Kind.PREEMPTED])
def test_what_ends_with_its_allocation_is_not_blamed_and_keeps_its_retries(
    make_driver: MakeDriver, kind: Kind
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number == 3 and attempt <= MAX_RETRIES + 2:
            launcher.states[0.0] = GONE
            return Outcome(kind, message="Slurm job 7 has expired")
        return ok()

    launcher = Lent(script)
    for session in range(1, MAX_RETRIES + 3):
        launcher.states[0.0] = HELD
        driver = make_driver(launcher, trials=5)
        assert driver.run() == Ending("the allocation is gone: cancelled, or over", CONTINUE)
        attempts = driver.state.trials[3].attempts
        assert [a.kind for a in attempts] == ["preempted"] * session
        assert "Slurm job 7 has expired" in attempts[-1].message
        assert [t.kind for t in driver.state.trials.values()] == ["ok", "ok", None]
    launcher.states[0.0] = HELD
    driver = make_driver(launcher, trials=5)
    assert driver.run() == Ending("budget: 5 trials", DONE, "trials")
    assert [t.kind for t in driver.state.trials.values()] == ["ok"] * 5


def test_what_a_trainer_said_before_its_allocation_went_stands(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        launcher.states[0.0] = GONE
        return Outcome(Kind.OOM if number == 1 else Kind.CRASH)

    launcher = Lent(script)
    driver = make_driver(launcher)
    assert driver.run().code == CONTINUE
    assert [t.kind for t in driver.state.trials.values()] == ["oom", None]


def test_an_allocation_that_goes_while_all_is_well_is_noticed_within_half_a_minute(
    make_driver: MakeDriver,
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        launcher.clock.sleep(launcher.clock.time() + 10.0, str(number), threading.Event())
        return ok()

    launcher = Lent(script)
    launcher.states[100.0] = GONE
    driver = make_driver(launcher, trials=50)
    assert driver.run().code == CONTINUE
    assert 100.0 <= launcher.clock.monotonic() <= 140.0


def test_a_silent_scheduler_is_waited_for_and_nothing_is_started(make_driver: MakeDriver) -> None:
    told: list[str] = []
    silent_s = range(1, 300)

    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number == 2 and attempt == 1:
            launcher.states |= {0.0: SILENT, 300.0: HELD}
            return Outcome(Kind.LAUNCH_FAILURE, message="Unable to contact slurm controller")
        assert launcher.clock.monotonic() not in silent_s
        return ok()

    def listen(event: Event | str | None, driver: Driver) -> None:
        told.extend([event] if isinstance(event, str) else [])

    launcher = Lent(script)
    driver = make_driver(launcher, trials=4, listen=listen)
    assert driver.run() == Ending("budget: 4 trials", DONE, "trials")
    assert [t.kind for t in driver.state.trials.values()] == ["ok"] * 4
    [failed] = [a for a in driver.state.trials[2].attempts if a.kind == "launch_failure"]
    assert not failed.costs_retry
    assert len(told) == 2
    assert "no trial is started until that ends, for up to 30 minutes" in told[0]
    assert 300.0 <= launcher.clock.monotonic() <= 310.0


def test_a_scheduler_that_stays_silent_ends_the_search_with_work_left(
    make_driver: MakeDriver,
) -> None:
    launcher = Lent(lambda n, a, lease: ok())
    launcher.states = {0.0: SILENT}
    ending = make_driver(launcher).run()
    reason = "no trial could be started for 30 minutes: the scheduler does not answer"
    assert ending == Ending(f"{reason}, or the job is suspended", CONTINUE)
    assert MAX_SILENCE_S <= launcher.clock.monotonic() <= MAX_SILENCE_S + 10
