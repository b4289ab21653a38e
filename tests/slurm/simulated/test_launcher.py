"""The simulated cluster alone; searches on it are in tests/workflows/test_simulate_search.py."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm.launcher import LauncherError
from slurm.outcome.classify import Outcome
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import EarlyStop, StepReport, StopRule
from slurm.simulated.clock import VirtualClock
from slurm.simulated.launcher import EPOCH, NODE_LOSS_S, SimulatedLauncher
from slurm.simulated.trial import SimulatedCluster
from slurm.trial import Lease, TrialSpec
from support.workload import CALM, GIB, Work


def trial(number: int, **changes: Any) -> TrialSpec:
    spec = TrialSpec(f"t-{number:04d}-1", Path(), ("train",), 1, 4, timeout_s=600.0)
    return replace(spec, **changes)


def run(
    launcher: SimulatedLauncher,
    specs: Sequence[TrialSpec],
    stop: threading.Event | None = None,
    stop_rule: StopRule | None = None,
) -> list[tuple[str, float, Outcome]]:
    """Run all at once, each on nodes of its own; (name, time, outcome) in the order of ends."""
    inbox: queue.SimpleQueue[tuple[str, Outcome]] = queue.SimpleQueue()
    free = list(launcher.nodes())
    stop = stop or threading.Event()

    def send(spec: TrialSpec, lease: Lease) -> None:
        inbox.put((spec.name, launcher.run(spec, lease, stop, stop_rule)))

    leases = {}
    for spec in specs:
        nodes, free = free[: spec.num_nodes], free[spec.num_nodes :]
        leases[spec.name] = Lease(spec.name, tuple(nodes))
    for spec in reversed(specs):  # the order of starts must not matter
        threading.Thread(target=send, args=(spec, leases[spec.name]), daemon=True).start()
    ends = []
    for left in range(len(specs), 0, -1):
        item = launcher.clock.receive(inbox, 1.0, left)
        assert item is not None
        ends.append((item[0], launcher.clock.time() - EPOCH, item[1]))
    return ends


def one(cluster: SimulatedCluster, spec: TrialSpec) -> Outcome:
    return run(SimulatedLauncher(cluster, Work()), [spec])[0][2]


def test_a_trial_takes_its_start_and_its_steps() -> None:
    launcher = SimulatedLauncher(CALM, Work())
    ((_, elapsed_s, outcome),) = run(launcher, [trial(1)])
    assert outcome.kind is Kind.OK
    assert outcome.result == {"status": "ok", "steps_s": [2.0] * 5, "peak_memory_bytes": 8 * GIB}
    assert outcome.elapsed_s == pytest.approx(elapsed_s)
    start_up_s = elapsed_s - 7 * 2.0
    assert 30.0 < start_up_s < 120.0


def test_trials_end_in_the_order_of_virtual_time() -> None:
    steps_s = [9.0, 1.0, 30.0, 60.0, 17.0]
    specs = [trial(i, config={"step_s": s}) for i, s in enumerate(steps_s)]
    quick_start = replace(CALM, start_up_s=1e-6)
    ends = run(SimulatedLauncher(quick_start, Work()), specs)
    assert [name for name, _, _ in ends] == [f"t-{i:04d}-1" for i in (1, 0, 4, 2, 3)]
    assert [at for _, at, _ in ends] == pytest.approx([7 * s for s in sorted(steps_s)])


def test_equal_times_end_in_the_order_of_names() -> None:
    clock, inbox, stop = VirtualClock(0.0), queue.SimpleQueue[str](), threading.Event()

    def send(name: str) -> None:
        clock.sleep(5.0, name, stop)
        inbox.put(name)

    names = [f"{i:02d}" for i in range(20)]
    for name in reversed(names):
        threading.Thread(target=send, args=(name,), daemon=True).start()
    assert [clock.receive(inbox, 1.0, 20 - i) for i in range(20)] == names
    assert clock.time() == 5.0


def test_an_item_that_never_slept_is_received_without_time_passing() -> None:
    clock, inbox = VirtualClock(7.0), queue.SimpleQueue[str]()
    threading.Thread(target=inbox.put, args=("failed",), daemon=True).start()
    assert clock.receive(inbox, None, 1) == "failed"
    assert clock.time() == 7.0
    assert clock.receive(inbox, 1.0, 0) is None
    assert clock.time() == 8.0


def test_equal_seeds_give_equal_ends() -> None:
    troubled = replace(CALM, noise=0.1, node_noise=0.1, crash=0.2, hang=0.2, launch_failure=0.2)
    specs = [trial(i) for i in range(8)]
    first, again = (run(SimulatedLauncher(troubled, Work()), specs) for _ in range(2))
    other = run(SimulatedLauncher(replace(troubled, seed=1), Work()), specs)
    assert first == again
    assert first != other
    assert len({outcome.kind for _, _, outcome in first}) > 1


def test_another_attempt_has_another_chance() -> None:
    noisy = replace(CALM, noise=0.1)
    assert one(noisy, trial(1)) != one(noisy, trial(1, name="t-0001-2"))


def test_more_memory_than_there_is_fails_before_the_first_step() -> None:
    outcome = one(CALM, trial(1, config={"needed_bytes": 65 * GIB, "step_s": 300.0}))
    assert outcome.kind is Kind.OOM
    assert outcome.elapsed_s < 200.0
    assert outcome.result and outcome.result["peak_memory_bytes"] == 64 * GIB
    assert "65.0 GiB of 64.0 GiB" in outcome.message


def test_what_the_trainer_refuses_is_invalid_whatever_its_memory() -> None:
    for need in (9 * GIB, 65 * GIB):
        outcome = one(CALM, trial(1, config={"refused": True, "needed_bytes": need}))
        assert outcome.kind is Kind.INVALID
        assert outcome.elapsed_s < 200.0


@pytest.mark.parametrize(("no_progress_s", "least_s"), [(100.0, 100.0), (None, 600.0)])
def test_a_hang_lasts_until_a_timeout(no_progress_s: float | None, least_s: float) -> None:
    outcome = one(replace(CALM, hang=1.0), trial(1, no_progress_timeout_s=no_progress_s))
    assert outcome.kind is Kind.TIMEOUT
    assert least_s <= outcome.elapsed_s <= 600.0
    assert ("hang" in outcome.message) == (no_progress_s is not None)


def test_a_slow_trial_is_ended_at_its_timeout() -> None:
    outcome = one(CALM, trial(1, config={"step_s": 90.0}))
    assert (outcome.kind, outcome.elapsed_s) == (Kind.TIMEOUT, 600.0)
    assert outcome.result is None and outcome.steps and 5 <= outcome.steps <= 6


def test_a_trial_that_starts_too_slowly_ends_without_a_step() -> None:
    outcome = one(replace(CALM, start_up_s=3_600.0), trial(1))
    assert (outcome.kind, outcome.elapsed_s, outcome.steps) == (Kind.TIMEOUT, 600.0, 0)


def test_steps_longer_than_the_patience_look_like_a_hang() -> None:
    outcome = one(CALM, trial(1, config={"step_s": 90.0}, no_progress_timeout_s=80.0))
    assert outcome.kind is Kind.TIMEOUT
    assert "hang" in outcome.message
    assert 80.0 < outcome.elapsed_s < 80.0 + 120.0


def test_a_crash_and_a_failed_launch_are_told_apart() -> None:
    crash = one(replace(CALM, crash=1.0), trial(1))
    assert (crash.kind, crash.suspect_nodes) == (Kind.CRASH, ())
    assert "RuntimeError" in crash.message
    launch = one(replace(CALM, launch_failure=1.0, crash=1.0), trial(1, num_nodes=3))
    assert launch.kind is Kind.LAUNCH_FAILURE
    assert len(launch.suspect_nodes) == 1


def test_a_trouble_leaves_trials_that_it_does_not_hit_as_they_were() -> None:
    noisy = replace(CALM, noise=0.1)
    specs = [trial(i) for i in range(8)]
    calm = {name: outcome for name, _, outcome in run(SimulatedLauncher(noisy, Work()), specs)}
    troubled = run(SimulatedLauncher(replace(noisy, crash=0.5), Work()), specs)
    same = [outcome == calm[name] for name, _, outcome in troubled if outcome.kind is Kind.OK]
    assert 0 < len(same) < 8
    assert all(same)


def test_a_node_that_fails_takes_its_trial_along_and_comes_back_for_the_next_session() -> None:
    fragile = replace(CALM, node_failures_per_day=100.0, repair_s=300.0)
    launcher = SimulatedLauncher(fragile, Work())
    ((_, at_s, outcome),) = run(launcher, [trial(1, num_nodes=8, config={"step_s": 60.0})])
    assert outcome.kind is Kind.NODE_FAILURE
    (lost,) = outcome.lost_nodes
    assert lost in launcher.down_nodes()
    assert lost not in launcher.nodes()
    assert at_s >= NODE_LOSS_S
    assert outcome.result is None
    sessions = [SimulatedLauncher(fragile, Work(), EPOCH + 100.0 * i) for i in range(100)]
    up = [lost in session.nodes() for session in sessions]
    assert 0 < up.count(False) < up.count(True)


def test_node_failures_come_at_the_asked_rate() -> None:
    days = 100
    rate = replace(CALM, nodes=50, node_failures_per_day=0.1, repair_s=days * 86_400.0)
    launcher = SimulatedLauncher(rate, Work(), EPOCH + days * 86_400)
    expected = 50 * days * 0.1
    failed = list(launcher._failures.between(EPOCH, launcher.clock.time()))
    assert len(failed) == pytest.approx(expected, abs=4 * expected**0.5)
    assert len({node for _, node in failed}) == 50


def test_a_trial_is_as_slow_as_its_slowest_node() -> None:
    uneven = SimulatedLauncher(replace(CALM, node_noise=0.2), Work())
    alone = [
        outcome.result["steps_s"][0]
        for _, _, outcome in run(uneven, [trial(i) for i in range(8)])
        if outcome.result
    ]
    assert len(set(alone)) == 8
    together = one(replace(CALM, node_noise=0.2), trial(9, num_nodes=8)).result
    assert together and together["steps_s"] == pytest.approx([max(alone)] * 5)


def test_a_stop_ends_all_trials_at_once() -> None:
    stop = threading.Event()
    stop.set()
    ends = run(SimulatedLauncher(CALM, Work()), [trial(i) for i in range(4)], stop)
    assert {outcome.kind for _, _, outcome in ends} == {Kind.CANCELLED}
    assert {at for _, at, _ in ends} == {0.0}


def test_steps_are_judged_at_their_own_time_and_a_hopeless_trial_ends_then() -> None:
    launcher = SimulatedLauncher(replace(CALM, start_up_s=1e-6), Work())
    heard: list[tuple[float, int, float]] = []

    def judge(steps: Sequence[StepReport]) -> EarlyStop | None:
        last = steps[-1]
        heard.append((launcher.clock.time() - EPOCH, last["step"], last["step_time_s"]))
        slow = last["step_time_s"] > 5 and len(steps) == 4
        return EarlyStop("stopped early", {"speed": 1.0}, saved_s=18.0) if slow else None

    specs = [trial(i, config={"step_s": s}) for i, s in enumerate((2.0, 6.0))]
    (_, first_s, first), (_, second_s, second) = run(launcher, specs, stop_rule=judge)
    assert (first_s, first.stopped_early) == (pytest.approx(14.0), False)
    assert (second_s, second.stopped_early, second.kind) == (pytest.approx(24.0), True, Kind.OK)
    assert (second.elapsed_s, second.saved_s) == (pytest.approx(24.0), 18.0)
    assert second.result == {"speed": 1.0}
    times = [at for at, _, _ in heard]
    assert times == sorted(times)
    assert times == pytest.approx(
        sorted([2.0 * k for k in range(1, 7)] + [6.0 * k for k in range(1, 5)])
    )


def test_a_node_that_dies_says_no_further_step() -> None:
    launcher = SimulatedLauncher(replace(CALM, node_failures_per_day=100.0), Work())
    heard: dict[float, int] = {}

    def judge(steps: Sequence[StepReport]) -> EarlyStop | None:
        heard[steps[0]["step_time_s"]] = len(steps)
        return None

    specs = [trial(i, config={"step_s": 50.0 + i}) for i in range(8)]
    ends = run(launcher, specs, stop_rule=judge)
    lost = [(int(name[2:6]), end) for name, _, end in ends if end.kind is Kind.NODE_FAILURE]
    assert lost and len(lost) < 8
    for number, end in lost:
        alive_s = end.elapsed_s - NODE_LOSS_S
        assert heard.get(50.0 + number, 0) * (50.0 + number) <= alive_s


def test_the_allocation_has_a_virtual_end() -> None:
    launcher = SimulatedLauncher(replace(CALM, time_s=3600.0), Work(), EPOCH + 100.0)
    assert launcher.time_left_s() == 3600.0
    ((_, _, outcome),) = run(launcher, [trial(1)])
    assert launcher.time_left_s() == pytest.approx(3600.0 - outcome.elapsed_s)
    assert SimulatedLauncher(CALM, Work()).time_left_s() is None


def test_a_cluster_has_nodes() -> None:
    with pytest.raises(LauncherError, match="0 nodes"):
        SimulatedLauncher(replace(CALM, nodes=0), Work())
    names = SimulatedLauncher(replace(CALM, nodes=9408), Work()).nodes()
    assert (names[0], names[-1], len(set(names))) == ("n0001", "n9408", 9408)


def test_it_imports_none_of_the_search(tmp_path: Path) -> None:
    code = (
        "import sys, slurm.simulated.launcher\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy', 'deephyper', "
        "'analysis', 'workflows', 'trainer'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout == "[]\n"
