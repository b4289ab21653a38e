"""The loop's decisions, with a launcher whose trials end as a script says.

Real processes are in test_session.py and, on a real Slurm, in tests/slurm.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analysis.run.events import Event, Opened, Proposed, Started
from analysis.run.fold import read_run
from search_spaces import SearchSpace
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.trial import Lease
from support.scripted_launcher import ScriptedLauncher, ok
from workflows.search.driver import Driver
from workflows.search.stopping import CONTINUE, DONE, FAILED, Ending
from workflows.search.trials import MAX_RETRIES, ended

Make = Callable[..., SearchSpace]
MakeDriver = Callable[..., Driver]


def kinds(driver: Driver) -> list[str | None]:
    return [t.kind for t in driver.state.trials.values()]


def test_a_search_ends_with_its_budget(make_driver: MakeDriver) -> None:
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok(n)))
    assert driver.run() == Ending("budget: 6 trials", DONE, "trials")
    assert kinds(driver) == ["ok"] * 6
    assert driver.state.best is not None
    assert driver.state.best.number == 6


def test_an_exhausted_space_ends_the_search(make_driver: MakeDriver, make_space: Make) -> None:
    space = make_space(parameters="{tp: [1, 2], mbs: [1, 2]}")
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok()), trials=None, space=space)
    assert driver.run() == Ending("every valid configuration has been tried", DONE)
    assert len(driver.state.trials) == 4


def test_a_failed_configuration_is_told_and_never_run_again(make_driver: MakeDriver) -> None:
    script = {1: Kind.OOM, 2: Kind.DIVERGED, 3: Kind.TIMEOUT, 4: Kind.INVALID}
    driver = make_driver(
        ScriptedLauncher(lambda n, a, lease: Outcome(script[n]) if n in script else ok())
    )
    driver.run()
    assert kinds(driver) == ["oom", "diverged", "timeout", "invalid", "ok", "ok"]
    assert all(len(t.attempts) == 1 for t in driver.state.trials.values())


def test_a_lost_node_requeues_its_trial_on_other_nodes(
    make_driver: MakeDriver, make_space: Make
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if "n0" in lease.nodes:
            return Outcome(Kind.NODE_FAILURE, lost_nodes=("n0",))
        return ok()

    space = make_space(parameters="{num_nodes: [1], tp: [1, 2], mbs: {range: [1, 8]}}")
    driver = make_driver(ScriptedLauncher(script, num_nodes=3), space=space)
    assert driver.run().code == DONE
    assert kinds(driver) == ["ok"] * 6
    trials = driver.state.trials.values()
    assert [len(t.attempts) for t in trials].count(2) == 1
    assert all("n0" not in t.attempts[-1].nodes for t in trials)


def test_a_node_that_is_down_from_the_start_is_given_to_no_trial(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok(), num_nodes=3)
    launcher.down = {"n0"}
    driver = make_driver(launcher)
    assert driver.run().code == DONE
    assert all("n0" not in a.nodes for t in driver.state.trials.values() for a in t.attempts)


def test_a_trial_whose_nodes_always_fail_is_given_up_and_not_counted(
    make_driver: MakeDriver,
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return Outcome(Kind.NODE_FAILURE) if number == 2 else ok()

    driver = make_driver(ScriptedLauncher(script), trials=4)
    driver.run()
    assert kinds(driver).count("ok") == 4
    assert driver.state.trials[2].kind == "node_failure"
    assert len(driver.state.trials[2].attempts) == MAX_RETRIES + 1


def test_a_trial_whose_node_has_failed_runs_again_on_another(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return Outcome(Kind.NODE_FAILURE) if "n0" in lease.nodes else ok()

    driver = make_driver(ScriptedLauncher(script, num_nodes=2), trials=1)
    driver.run()
    assert [a.nodes for a in driver.state.trials[1].attempts] == [("n0",), ("n1",)]


def test_a_search_without_a_success_has_failed(make_driver: MakeDriver) -> None:
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: Outcome(Kind.OOM)))
    assert driver.run() == Ending("budget: 6 trials; no trial succeeded", FAILED, "trials")
    assert driver.state.closed_by == "trials"


def test_a_success_without_the_objective_is_a_crash_that_says_what_there_was(
    make_driver: MakeDriver,
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return Outcome(Kind.OK, result={"velocity": 3}) if number == 1 else ok()

    driver = make_driver(ScriptedLauncher(script), trials=2)
    driver.run()
    assert driver.state.trials[1].attempts[0].kind == "crash"
    assert "'speed'; it has velocity" in driver.state.trials[1].message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_figure_that_is_not_finite_has_diverged(make_driver: MakeDriver, value: float) -> None:
    driver = make_driver(
        ScriptedLauncher(lambda n, a, lease: ok(value if n == 1 else 1.0)), trials=2
    )
    driver.run()
    assert driver.state.trials[1].kind == "diverged"
    assert read_run(driver.folder.path).trials[1].result == {"speed": None}


def test_free_nodes_get_work_while_a_wide_trial_waits(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok(), num_nodes=3)
    launcher.gate.clear()
    waited = []

    def open_when_full(event: Event | str | None, driver: Driver) -> None:
        waited.extend(r.trial for r in driver.running.values() if len(r.lease.nodes) == 2)
        if not driver.pool.free:
            launcher.gate.set()

    driver = make_driver(launcher, trials=20, listen=open_when_full)
    driver.run()  # never ends if the third node is left idle beside a trial of two
    assert waited
    assert kinds(driver) == ["ok"] * 20


def test_no_more_steps_run_than_the_site_allows(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok(), num_nodes=8)
    launcher.max_concurrent = 2
    make_driver(launcher, trials=12).run()
    assert launcher.most_at_once <= 2


def test_a_launcher_that_raises_costs_an_attempt_not_the_search(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if number == 1 and attempt == 1:
            raise OSError("fork: resource temporarily unavailable")
        return ok()

    driver = make_driver(ScriptedLauncher(script))
    assert driver.run().code == DONE
    assert kinds(driver) == ["ok"] * 6
    assert "fork" in driver.state.trials[1].attempts[0].message


def test_a_stop_ends_what_runs_and_the_next_session_runs_it_again(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok())
    launcher.gate.clear()

    def stop_when_running(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Started):
            driver.stop(Ending("stopped by SIGINT", 130))

    driver = make_driver(launcher, listen=stop_when_running)
    assert driver.run() == Ending("stopped by SIGINT", 130)
    assert set(kinds(driver)) == {None}
    assert not driver.running
    launcher.gate.set()
    driver = make_driver(launcher)
    assert driver.run().code == DONE
    assert kinds(driver) == ["ok"] * 6
    assert driver.state.trials[1].attempts[0].kind == "cancelled"


def test_no_trial_starts_that_cannot_end_before_the_allocation(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok())
    launcher.left_s = 100.0  # the trial's timeout of 60 s and the margin of 60 s are more
    driver = make_driver(launcher)
    ending = driver.run()
    assert ending.code == CONTINUE
    assert not driver.state.trials


def test_a_drain_lets_running_trials_end(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok())
    launcher.gate.clear()

    def drain(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Started):
            driver.drain(Ending("the allocation ends", CONTINUE))
            launcher.gate.set()

    driver = make_driver(launcher, listen=drain)
    assert driver.run() == Ending("the allocation ends", CONTINUE)
    started = [t for t in driver.state.trials.values() if t.attempts]
    assert started and all(t.ok for t in started)


def test_a_trial_too_wide_for_what_is_left_waits_for_another_allocation(
    make_driver: MakeDriver, make_space: Make
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        if len(lease.nodes) == 2:
            return Outcome(Kind.NODE_FAILURE, lost_nodes=(lease.nodes[0],))
        return ok()

    space = make_space(parameters="{num_nodes: [1, 2], mbs: [1, 2, 3]}", trainer="{command: [t]}")
    driver = make_driver(ScriptedLauncher(script), trials=6, space=space)
    assert driver.run().code == CONTINUE
    assert sum(t.kind is None for t in driver.state.trials.values()) == 1
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok()), trials=6, space=space)
    assert driver.run().code == DONE
    assert kinds(driver) == ["ok"] * 6


def test_a_pool_without_nodes_ends_the_search(make_driver: MakeDriver) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return Outcome(Kind.NODE_FAILURE, lost_nodes=lease.nodes)

    ending = make_driver(ScriptedLauncher(script)).run()
    assert ending == Ending("no usable node is left", FAILED)


def test_a_search_whose_last_trial_takes_the_last_node_with_it_is_done(
    make_driver: MakeDriver,
) -> None:
    def script(number: int, attempt: int, lease: Lease) -> Outcome:
        return Outcome(Kind.OK, result={"speed": 1.0}, lost_nodes=lease.nodes)

    driver = make_driver(ScriptedLauncher(script, num_nodes=1), trials=1)
    assert driver.run() == Ending("budget: 1 trial", DONE, "trials")


def test_what_a_killed_driver_left_running_is_settled_before_anything_starts(
    make_driver: MakeDriver,
) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok())
    driver = make_driver(launcher)
    driver.journal.write(
        Opened(
            space="toy",
            fingerprint="f",
            seed=0,
            launcher="scripted",
            nodes=["n0"],
            objective={"maximize": "speed"},
        )
    )
    for number, mbs in ((1, 1), (2, 2)):
        config = {"num_nodes": 1, "tp": 1, "mbs": mbs}
        driver.journal.write(Proposed(trial=number, config=config, by="random", why=""))
        name = f"meshtune-test-{number:04d}-1"
        driver.journal.write(Started(trial=number, attempt=1, name=name, nodes=["n0"]))
    finished = driver.folder.trial(2)
    finished.mkdir(parents=True)
    (finished / "result.json").write_text('{"status": "ok", "speed": 42.0}')
    driver.run()
    assert launcher.settled == ["meshtune-test-0001-1", "meshtune-test-0002-1"]
    assert [len(driver.state.trials[n].attempts) for n in (1, 2)] == [2, 1]
    assert driver.state.trials[2].objective == 42.0


def test_results_csv_has_deephypers_columns(make_driver: MakeDriver) -> None:
    driver = make_driver(
        ScriptedLauncher(lambda n, a, lease: Outcome(Kind.OOM) if n == 2 else ok(n))
    )
    driver.run()
    lines = (driver.folder.path / "results.csv").read_text().splitlines()
    assert lines[0] == "p:num_nodes,p:tp,p:mbs,objective,job_id,job_status,m:speed"
    assert lines[2].split(",")[3:] == ["F_oom", "2", "FAILED", ""]
    assert lines[6].split(",")[3:] == ["6.0", "6", "DONE", "6"]


def test_configurations_that_fit_no_node_left_wait_for_another_allocation(
    make_driver: MakeDriver, make_space: Make
) -> None:
    space = make_space(parameters="{num_nodes: [1, 2], mbs: [1, 2]}", trainer="{command: [t]}")
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok(), num_nodes=1), 9, space=space)
    assert driver.run() == Ending("the configurations left need more than 1 node", CONTINUE)
    assert kinds(driver) == ["ok", "ok"]


def test_a_trial_that_kills_its_driver_is_not_tried_for_ever(make_driver: MakeDriver) -> None:
    driver = make_driver(ScriptedLauncher(lambda n, a, lease: ok()))
    config = {"num_nodes": 1, "tp": 1, "mbs": 1}
    driver.journal.write(Proposed(trial=1, config=config, by="random", why=""))
    for attempt in range(1, MAX_RETRIES + 2):
        name = f"meshtune-test-0001-{attempt}"
        driver.journal.write(Started(trial=1, attempt=attempt, name=name, nodes=["n0"]))
        if attempt <= MAX_RETRIES:  # the next driver has noticed
            killed = Outcome(Kind.PREEMPTED, message="its driver was killed")
            trial = driver.state.trials[1]
            driver.journal.write(ended(driver.space, trial, attempt, ["n0"], killed))
            assert not trial.ended
    assert driver.run().code == DONE
    assert driver.state.trials[1].kind == "preempted"
    assert kinds(driver).count("ok") == 6


def test_a_search_that_is_done_when_the_allocation_ends_is_done(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok())

    def end_allocation(event: Event | str | None, driver: Driver) -> None:
        if isinstance(event, Started):
            launcher.left_s = 1.0

    driver = make_driver(launcher, trials=1, listen=end_allocation)
    assert driver.run() == Ending("budget: 1 trial", DONE, "trials")


def test_a_draining_driver_waits_without_turning(make_driver: MakeDriver) -> None:
    launcher = ScriptedLauncher(lambda n, a, lease: ok())
    launcher.gate.clear()
    ticks = 0

    def count(event: Event | str | None, driver: Driver) -> None:
        nonlocal ticks
        launcher.left_s = 1.0 if driver.running else None
        ticks += event is None
        if ticks == 2:
            launcher.gate.set()

    make_driver(launcher, trials=1, listen=count).run()
    assert ticks <= 5
