"""Searches on a real Slurm: submitted, killed, requeued; and every way a trial can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.run.fold import Run, read_run
from analysis.run.lines import Lines, RunError
from analysis.run.lock import driver_of
from benchmarks.power_cuts import kill_node, revive_node
from slurm.minicluster import daemons
from slurm.minicluster.cluster import Minicluster
from support.small_search import QUICK
from support.waiting import wait_for

pytestmark = pytest.mark.slurm

# One program for all trials: does what `case` says, on every rank.
TRAINER = """
import os, sys, time
case, mbs = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_ADDR"], flush=True)
if case == "host_oom":
    memory = []
    while True:
        memory.append(bytearray(b"x" * (64 << 20)))
        print(len(memory), flush=True)  # slow as this machine may be, it is no hang
if case == "crash" and rank == 1:
    raise RuntimeError("this trainer is broken")
if case == "gpu_oom":
    print("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", file=sys.stderr)
    sys.exit(1)
while case == "gated" and os.path.basename(os.getcwd()) > "0003" and not os.path.exists("../../go"):
    print("waits", flush=True)
    time.sleep(0.1)
stays = case == "hang" or (case == "node" and not os.path.exists("node_is_dead"))
while stays:
    time.sleep(0.1)
    if case == "node":
        print("speaks", flush=True)  # or it might be a hang before its node dies
if case == "steps" and rank == 0:
    first = not os.path.exists("../../first")  # all others are four times slower, and never end
    open("../../first", "a").close()
    for step in range(1, 6):
        print('MESHTUNE_STEP {"step": %d, "speed": %d}' % (step, 400 if first else 100), flush=True)
    if not first:
        time.sleep(600)
time.sleep(0.5)
if rank == 0:
    print('MESHTUNE_RESULT {"speed": %d}' % (100 * int(os.environ["WORLD_SIZE"]) + mbs))
"""
SPACE = """
version: 1
name: mini
cluster: {{name: mini, gpus_per_node: 2, memory_gib: 1, peak_fp32_tflops: 0.1}}
trainer:
  command: [{python}, {trainer}, "{{case}}", "{{mbs}}"]
  preload: {preload}
parameters:
{parameters}
objective: {{maximize: speed}}
trial: {{timeout: 300s, no_progress_timeout: 20s}}
budget: {{trials: {trials}}}
finalists: false
"""


def write_space(folder: Path, parameters: str, trials: int, preload: str = "[]") -> Path:
    (folder / "train.py").write_text(TRAINER)
    space = folder / "space.yaml"
    space.write_text(
        SPACE.format(
            python=sys.executable,
            trainer=folder / "train.py",
            preload=preload,
            parameters=parameters,
            trials=trials,
        )
    )
    return space


def meshtune(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "workflows.cli.main", *map(str, arguments)]


def peek(run_dir: Path) -> Run:
    """The run as it stands; an empty one before there is a journal."""
    try:
        return read_run(run_dir)
    except RunError:
        return Run(run_dir)


def ended(run_dir: Path) -> int:
    return sum(t.ended for t in peek(run_dir).trials.values())


def test_a_submitted_search_survives_kill_9_and_a_requeue(
    minicluster: Minicluster, tmp_path: Path
) -> None:
    parameters = "  num_nodes: [1, 2]\n  case: [gated]\n  mbs: {range: [1, 6]}"
    space, run_dir = write_space(tmp_path, parameters, trials=10), tmp_path / "run"
    command = meshtune("submit", space, "--nodes", 3, "--time", "00:10:00", "--run-dir", run_dir)
    submitted = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert "submitted job" in submitted.stdout
    frozen = (run_dir / "space.yaml").read_text()
    space.write_text(space.read_text().replace("trials: 10", "trials: 20"))
    again = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert again.returncode == 2
    job = submitted.stdout.split()[2].rstrip(";")
    assert f"job {job} (" in again.stderr and f"`scancel {job}`" in again.stderr
    assert (run_dir / "space.yaml").read_text() == frozen  # nothing that the job reads is touched
    wait_for(lambda: ended(run_dir) >= 3, "three trials ended")
    driver = driver_of(run_dir)
    assert driver is not None
    os.kill(int(driver.rpartition(" ")[2]), 9)
    (run_dir / "go").touch()
    wait_for(lambda: peek(run_dir).closed, "the requeued job finished the search")
    wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
    run = read_run(run_dir)
    assert len(run.opened_t) == 2
    assert run.closed == "budget: 10 trials"
    events = list(Lines(run_dir / "journal.jsonl"))
    final = Counter(e["trial"] for e in events if e["event"] == "ended" and e["final"])
    assert final == dict.fromkeys(range(1, 11), 1)
    assert {t.kind for t in run.trials.values()} == {"ok"}
    assert {len(t.attempts[-1].nodes) for t in run.trials.values()} == {1, 2}
    assert (run_dir / "report" / "index.html").exists()
    best = run.best
    assert best is not None
    assert best.config["num_nodes"] == 2


def test_a_space_that_was_submitted_may_be_mended_until_its_job_has_begun(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path
) -> None:
    space, run_dir = write_space(tmp_path, "  case: [ok]\n  mbs: [1]", trials=1), tmp_path / "run"
    everything = allocate(8)  # so that the job waits
    command = meshtune("submit", space, "--nodes", 8, "--time", "00:10:00", "--run-dir", run_dir)
    try:
        submitted = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
        job = submitted.stdout.split()[2].rstrip(";")
        space.write_text(space.read_text().replace("mbs: [1]", "mbs: [2]"))
        refused = subprocess.run(command, capture_output=True, text=True, timeout=250)
        assert refused.returncode == 2
        assert f"job {job} (pending)" in refused.stderr
        minicluster.run("scancel", job)
        wait_for(lambda: job not in minicluster.run("squeue", "-h", "-o", "%A"), "it is gone")
        subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    finally:
        minicluster.run("scancel", "--user=root")
        wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
    assert "mbs: 2" in (run_dir / "space.yaml").read_text()
    assert everything


def test_a_hopeless_trial_is_ended_alone_and_its_nodes_are_used_again(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path
) -> None:
    parameters = "  num_nodes: [2]\n  case: [steps]\n  mbs: [1, 2, 3, 4]"
    space, run_dir = write_space(tmp_path, parameters, trials=4), tmp_path / "run"
    job = allocate(2)
    try:
        command = meshtune("search", space, "--run-dir", run_dir, "--seed", 1, *QUICK)
        environ = {**os.environ, "SLURM_JOB_ID": job}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not minicluster.run("squeue", "-h", "-s", "-j", job, "-o", "%N").split()
    finally:
        minicluster.run("scancel", job)
        wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
    trials = read_run(run_dir).trials.values()
    assert {t.kind for t in trials} == {"ok"}
    first, *others = trials
    assert first.objective is not None and not first.stopped_early
    assert all(t.stopped_early and t.objective == 100.0 for t in others)
    assert {a.nodes for t in trials for a in t.attempts} == {first.attempts[0].nodes}
    assert max(t.elapsed_s for t in trials) < 600


@pytest.mark.parametrize("preload", ["[]", "[json]"])
def test_every_failure_is_told_apart_and_the_search_goes_on(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path, preload: str
) -> None:
    cases = ["ok", "gpu_oom", "host_oom", "crash", "hang", "node"]
    parameters = f"  num_nodes: [1]\n  case: [{', '.join(cases)}]\n  mbs: [1]"
    space, run_dir = write_space(tmp_path, parameters, 6, preload), tmp_path / "run"
    # Not a batch job: the node that the test lets die may not be the driver's own.
    job = allocate(3)
    driver = subprocess.Popen(
        meshtune("search", space, "--run-dir", run_dir, *QUICK),
        env={**os.environ, "SLURM_JOB_ID": job},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def running_case(case: str) -> list[tuple[Path, str]]:
        return [
            (run_dir / "trials" / f"{t.number:04d}", t.running.nodes[0])
            for t in peek(run_dir).trials.values()
            if t.config["case"] == case and t.running
        ]

    def node_trial_speaks() -> bool:
        found = running_case("node")
        return (
            bool(found)
            and (found[0][0] / "stdout.log").exists()
            and bool((found[0][0] / "stdout.log").read_text())
        )

    node = ""
    try:
        wait_for(node_trial_speaks, "the trial that loses its node runs")
        [(folder, node)] = running_case("node")
        (folder / "node_is_dead").touch()
        kill_node(minicluster, node)
        output, _ = driver.communicate(timeout=240)
        assert driver.returncode == 0, output
        # Slurm lists a step whose only node died until the job ends.
        steps = minicluster.run("squeue", "-h", "-s", "-j", job, "-o", "%N").split()
        assert set(steps) <= {node}
    finally:
        driver.kill()
        driver.wait()
        minicluster.run("scancel", job)
        if node:
            revive_node(minicluster, node)
        wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
    run = read_run(run_dir)
    kinds = {t.config["case"]: t.kind for t in run.trials.values()}
    limited = minicluster.config.cgroup
    assert kinds == {
        "ok": "ok",
        "gpu_oom": "oom",
        "host_oom": "host_oom" if limited else "crash",
        "crash": "crash",
        "hang": "timeout",
        "node": "ok",
    }
    trial = next(t for t in run.trials.values() if t.config["case"] == "node")
    assert [a.kind for a in trial.attempts] == ["node_failure", "ok"]
    assert node not in trial.attempts[-1].nodes
    messages = {t.config["case"]: t.message for t in run.trials.values()}
    assert "no progress" in messages["hang"] or "20 s" in messages["hang"]
    crash = next(t for t in run.trials.values() if t.config["case"] == "crash")
    assert "this trainer is broken" in crash.stderr_tail


def test_a_cancelled_allocation_ends_the_search_with_work_left_and_nobody_is_blamed(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path
) -> None:
    parameters = "  num_nodes: [1, 2]\n  case: [ok]\n  mbs: {range: [1, 40]}"
    space, run_dir = write_space(tmp_path, parameters, trials=80), tmp_path / "run"
    job = allocate(2)
    driver = start_search(space, run_dir, job)
    try:
        wait_for(lambda: ended(run_dir) >= 2, "two trials ended")
        minicluster.run("scancel", job)
        output, _ = driver.communicate(timeout=250)
    finally:
        driver.kill()
        driver.wait()
        minicluster.run("scancel", job)
        wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
    assert driver.returncode == 3, output
    assert "the allocation is gone" in output and "resume with: meshtune search" in output
    run = read_run(run_dir)
    assert {t.kind for t in run.trials.values()} <= {"ok", None}
    attempts = [a for t in run.trials.values() for a in t.attempts]
    assert {a.kind for a in attempts} <= {"ok", "preempted", "cancelled"}
    assert not any(a.costs_retry for a in attempts)


def test_a_search_waits_for_a_controller_that_is_away_when_it_starts(
    minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path
) -> None:
    space, run_dir = write_space(tmp_path, "  case: [ok]\n  mbs: [1]", trials=1), tmp_path / "run"
    job = allocate(1)
    [controller] = daemons.controller(minicluster.config)
    os.kill(controller, signal.SIGSTOP)  # it takes questions and answers none
    driver = start_search(space, run_dir, job)
    try:
        assert driver.stdout is not None
        said = driver.stdout.readline()
        os.kill(controller, signal.SIGCONT)
        output, _ = driver.communicate(timeout=250)
    finally:
        os.kill(controller, signal.SIGCONT)
        driver.kill()
        driver.wait()
        minicluster.run("scancel", job)
        wait_for(lambda: not minicluster.run("squeue", "-h"), "the queue is empty")
    assert "Slurm does not answer" in said, said + output
    assert driver.returncode == 0, output
    assert read_run(run_dir).closed == "budget: 1 trial"


def start_search(space: Path, run_dir: Path, job: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        meshtune("search", space, "--run-dir", run_dir, *QUICK),
        env={**os.environ, "SLURM_JOB_ID": job},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
