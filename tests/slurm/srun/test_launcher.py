"""What is particular to srun, on a real Slurm; test_contract.py has what every launcher does."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.power_cuts import kill_node, revive_node
from slurm import processes
from slurm.launcher import AllocationState
from slurm.minicluster.cluster import Minicluster
from slurm.outcome.kinds import Kind
from slurm.srun import shell
from slurm.srun.allocation import Allocation
from slurm.srun.launcher import SrunLauncher
from slurm.srun.site import Site
from slurm.srun.steps import LaunchPacing
from slurm.trial import Lease
from support.launched_trials import (
    HANG,
    NEVER,
    SLEEP,
    assert_ranks_ended,
    in_thread,
    pids,
    run_on,
    trial,
)
from support.slurm_controller import FakeController
from support.srun_trials import assert_gone, sruns_of, start_srun, step_names
from support.waiting import wait_for
from workflows.search.attempts import Attempts, Running

needs_slurm = pytest.mark.slurm

SAY_WHO = """
import json, os
from pathlib import Path
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "SLURMD_NODENAME"]
Path("rank" + os.environ["RANK"]).write_text(json.dumps({n: os.environ[n] for n in names}))
if os.environ["RANK"] == "0":
    Path("result.json").write_text('{"status": "ok", "x": 1}')
"""


@needs_slurm
def test_a_one_node_and_a_two_node_trial_run_at_once_on_their_own_nodes(
    launcher: SrunLauncher, tmp_path: Path
) -> None:
    both_up = "\nimport time\nwhile len(list(Path('..').glob('*/rank?'))) < 6: time.sleep(0.05)\n"
    narrow = trial(tmp_path, "narrow", SAY_WHO + both_up)
    wide = trial(tmp_path, "wide", SAY_WHO + both_up, num_nodes=2)
    thread, outcomes = in_thread(lambda: run_on(launcher, narrow, first=3))
    outcome = run_on(launcher, wide, first=1)
    thread.join()
    assert [o.kind for o in (outcome, *outcomes)] == [Kind.OK, Kind.OK], outcome
    assert outcome.result == {"status": "ok", "x": 1}
    seen = {p.name: json.loads(p.read_text()) for p in sorted(wide.directory.glob("rank?"))}
    nodes = launcher.nodes()
    assert [seen[f"rank{i}"]["SLURMD_NODENAME"] for i in range(4)] == [
        nodes[1], nodes[1], nodes[2], nodes[2]
    ]  # fmt: skip
    assert [seen[f"rank{i}"]["LOCAL_RANK"] for i in range(4)] == ["0", "1", "0", "1"]
    assert {s["WORLD_SIZE"] for s in seen.values()} == {"4"}
    assert {s["LOCAL_WORLD_SIZE"] for s in seen.values()} == {"2"}
    # A fake node's name does not resolve, its address does.
    assert {s["MASTER_ADDR"] for s in seen.values()} == {"127.0.0.1"}
    [who] = {json.loads(p.read_text())["SLURMD_NODENAME"] for p in narrow.directory.glob("rank?")}
    assert who == nodes[3]
    assert (wide.directory / "command.txt").read_text().startswith("srun -N2 -n4 ")


@needs_slurm
def test_a_rank_over_its_hosts_memory_is_told_from_a_crash(
    launcher: SrunLauncher, minicluster: Minicluster, tmp_path: Path
) -> None:
    if not minicluster.config.cgroup:
        pytest.skip("cgroups do not work on this machine")
    code = HANG + "x = bytearray(400 << 20) if os.environ['RANK'] == '1' else b''; " + SLEEP
    spec = trial(tmp_path, "hog", code, memory_bytes_per_rank=64 << 20)
    outcome = run_on(launcher, spec)
    assert outcome.kind is Kind.HOST_OOM, outcome
    assert outcome.suspect_nodes == outcome.lost_nodes == ()
    assert_gone(launcher, spec)


@needs_slurm
def test_a_request_that_slurm_refuses_is_a_launch_failure(
    launcher: SrunLauncher, tmp_path: Path
) -> None:
    too_many = trial(tmp_path, "many", SAY_WHO, ranks_per_node=65, cpus_per_rank=1)
    assert run_on(launcher, too_many).kind is Kind.LAUNCH_FAILURE
    elsewhere = trial(tmp_path, "elsewhere", SAY_WHO)
    outcome = launcher.run(elsewhere, Lease("1", ("nosuchnode",)), NEVER)
    assert outcome.kind is Kind.LAUNCH_FAILURE
    assert "srun: error" in outcome.message


@needs_slurm
def test_a_trial_that_waits_for_its_step_can_be_stopped_and_never_starts(
    launcher: SrunLauncher, tmp_path: Path
) -> None:
    # Slurm lets a step wait whose memory is not there, though it never will be.
    spec = trial(tmp_path, "waiter", SAY_WHO, memory_bytes_per_rank=1 << 40)
    stop, lease = threading.Event(), Lease("1", (launcher.nodes()[0],))
    thread, outcomes = in_thread(lambda: launcher.run(spec, lease, stop))
    wait_for(lambda: bool(sruns_of(spec)), "its srun runs")
    stop.set()
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.CANCELLED]
    assert not list(spec.directory.glob("rank*"))
    assert not sruns_of(spec)
    assert spec.name not in step_names(launcher)


@needs_slurm
def test_a_step_that_somebody_else_cancels_says_nothing_about_its_configuration(
    launcher: SrunLauncher, tmp_path: Path
) -> None:
    spec = trial(tmp_path, "cancelled", HANG + SLEEP)
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: len(pids(spec)) == 2, "both ranks run")
    [step] = [s for s in launcher.allocation.steps() if s.name == spec.name]
    launcher.allocation.cancel(step)
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.PREEMPTED]


@needs_slurm
@pytest.mark.parametrize(("result", "kind"), [("", Kind.PREEMPTED), ("ok", Kind.OK)])
def test_an_srun_that_somebody_kills_leaves_nothing_blames_nobody_and_costs_no_result(
    launcher: SrunLauncher, tmp_path: Path, result: str, kind: Kind
) -> None:
    done = f"open('result.json', 'w').write('{json.dumps({'status': result})}'); " if result else ""
    spec = trial(tmp_path, "severed", done + HANG + SLEEP)
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: len(pids(spec)) == 2, "both ranks run")
    processes.send(sruns_of(spec), signal.SIGKILL)
    thread.join()
    assert [o.kind for o in outcomes] == [kind], outcomes
    assert_gone(launcher, spec)


@needs_slurm
def test_a_step_whose_srun_was_killed_too_is_settled(
    launcher: SrunLauncher, tmp_path: Path
) -> None:
    """SIGKILL to srun's process group leaves an orphan step that holds its nodes."""
    spec = trial(tmp_path, "orphan", HANG + SLEEP)
    child = start_srun(launcher, spec, launcher.nodes()[0])
    wait_for(lambda: len(pids(spec)) == 2, "both ranks run")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert spec.name in step_names(launcher)
    launcher.settle([spec.name])
    assert_gone(launcher, spec)


@needs_slurm
def test_a_node_that_dies_takes_its_trial_along_and_no_other(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path
) -> None:
    job = allocate(3)
    launcher = SrunLauncher(Site.load("generic"), Allocation(job))
    nodes = launcher.nodes()
    victim = nodes[1]
    struck, spared = trial(tmp_path, "struck", HANG + SLEEP, num_nodes=2), trial(
        tmp_path, "spared", HANG + "\nwhile not os.path.exists('go'): time.sleep(0.05)\n" + SAY_WHO
    )  # fmt: skip
    try:
        striking, outcomes = in_thread(lambda: run_on(launcher, struck))
        sparing, spared_outcomes = in_thread(lambda: run_on(launcher, spared, first=2))
        wait_for(lambda: len(pids(struck)) == 4 and len(pids(spared)) == 2, "both trials run")
        kill_node(minicluster, victim)
        striking.join()
        assert [o.kind for o in outcomes] == [Kind.NODE_FAILURE], outcomes
        assert outcomes[0].lost_nodes == (victim,)
        assert victim in launcher.down_nodes()
        assert_ranks_ended(struck)
        # Slurm may list the step of a dead node a little longer; nothing of it is left.
        wait_for(lambda: struck.name not in step_names(launcher), "its step is gone")
        (spared.directory / "go").touch()
        sparing.join()
        assert [o.kind for o in spared_outcomes] == [Kind.OK]
        after = trial(tmp_path, "after", SAY_WHO)
        assert run_on(launcher, after).kind is Kind.OK  # the healthy neighbour works on
    finally:
        shell.run(["scancel", job])
        revive_node(minicluster, victim)
        wait_for(lambda: set(minicluster.node_states().values()) <= {"idle", "mixed", "allocated"},
                 "the node is back")  # fmt: skip
        wait_for(lambda: job not in shell.run(["squeue", "-h", "-o", "%A"]), "the job is gone")


def test_launches_keep_their_distance_and_a_stop_ends_the_wait() -> None:
    now, waits = 100.0, []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            waits.append(timeout)
            now += timeout or 0.0
            return self.is_set()

    pacing, stop = LaunchPacing(0.2, lambda: now), Stop()
    assert pacing.wait(stop) and pacing.wait(stop)
    now += 0.15
    assert pacing.wait(stop)
    stop.set()
    assert not pacing.wait(stop)
    assert waits == pytest.approx([0.0, 0.2, 0.05, 0.2])


def test_a_trial_that_is_stopped_while_it_waits_for_its_turn_never_starts(tmp_path: Path) -> None:
    launcher = SrunLauncher(Site.load("generic"), Allocation("7", FakeController([""])))
    stopped = threading.Event()
    stopped.set()
    outcome = launcher.run(trial(tmp_path, "t", SAY_WHO), Lease("1", ("n1",)), stopped)
    assert outcome.kind is Kind.CANCELLED


def test_an_allocation_that_takes_no_further_step_is_over_before_slurm_lists_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a preemption's grace time; as a retry each refusal would cost a healthy trial."""
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    refusal = "Unable to create step for job 7: Job/step already completing or completed"
    srun.write_text(f"#!/bin/sh\necho 'srun: error: {refusal}' >&2; exit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(srun.parent), prepend=":")
    launcher = SrunLauncher(Site.load("generic"), Allocation("7", FakeController([""])))
    attempts = Attempts(launcher)
    before = launcher.allocation_state()
    spec = trial(tmp_path, "t", SAY_WHO)
    attempts.start(Running(1, 1, Lease("1", ("n1",)), 0), spec, None)
    ended = attempts.next_end(30.0)
    assert ended is not None
    assert (ended[1].kind, ended[1].excused) == (Kind.PREEMPTED, True)
    states = (before, launcher.allocation_state())
    assert states == (AllocationState.HELD, AllocationState.GONE)
