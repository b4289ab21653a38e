"""Steps that Slurm has forgotten, on a real one whose controller is killed while they run."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from slurm import processes
from slurm.launcher import LauncherError
from slurm.minicluster import daemons
from slurm.minicluster.cluster import Minicluster
from slurm.outcome.kinds import Kind
from slurm.srun import shell
from slurm.srun.allocation import Allocation
from slurm.srun.ending import Step, StepEnder
from slurm.srun.launcher import SrunLauncher
from slurm.srun.proof import NodeProof
from slurm.srun.site import Site
from slurm.trial import Lease
from support.forgetful_slurm import forgetting
from support.launched_trials import HANG, SLEEP, in_thread, pids, run_on, trial
from support.slurm_controller import FakeController
from support.srun_trials import start_srun, step_names
from support.waiting import wait_for

GENERIC = Site.load("generic")


@pytest.fixture
def launcher(minicluster: Minicluster, allocate: Callable[[int], str]) -> Iterator[SrunLauncher]:
    """The launcher, on two nodes."""
    job = allocate(2)
    yield SrunLauncher(GENERIC, Allocation(job))
    shell.run(["scancel", job])
    wait_for(lambda: not minicluster.run("squeue", "-h"), "the job is gone")
    wait_for(lambda: set(minicluster.node_states().values()) == {"idle"}, "all nodes are back")


@pytest.mark.slurm
def test_steps_that_slurm_has_forgotten_are_ended_before_their_nodes_are_leased_again(
    launcher: SrunLauncher, minicluster: Minicluster, tmp_path: Path
) -> None:
    first, second = launcher.nodes()
    stopped, left = (trial(tmp_path, name, HANG + SLEEP) for name in ("stopped", "left"))
    stop = threading.Event()
    with forgetting(minicluster, launcher.allocation.job):
        thread, outcomes = in_thread(lambda: launcher.run(stopped, Lease("1", (first,)), stop))
        of_killed_driver = start_srun(launcher, left, second)
        wait_for(lambda: len(pids(stopped)) == len(pids(left)) == 2, "all ranks run")
        os.killpg(of_killed_driver.pid, signal.SIGKILL)
        of_killed_driver.wait()
    assert not step_names(launcher)
    assert all(map(processes.is_running, pids(stopped) + pids(left)))
    stop.set()
    SrunLauncher(GENERIC, launcher.allocation).settle([left.name])
    thread.join()
    assert not any(map(processes.is_running, pids(stopped) + pids(left)))
    assert [(o.kind, o.lost_nodes) for o in outcomes] == [(Kind.CANCELLED, ())]


@pytest.mark.slurm
def test_a_step_of_an_earlier_job_that_slurm_lists_for_ever_keeps_no_other_job_from_its_search(
    launcher: SrunLauncher, minicluster: Minicluster, allocate: Callable[[int], str], tmp_path: Path
) -> None:
    earlier = SrunLauncher(GENERIC, Allocation(allocate(1)))
    spec = trial(tmp_path, "left", HANG + SLEEP)
    try:
        of_killed_driver = start_srun(earlier, spec, earlier.nodes()[0])
        wait_for(lambda: len(pids(spec)) == 2, "all ranks run")
        with forgetting(minicluster, earlier.allocation.job):
            shell.run(["scancel", earlier.allocation.steps()[0].id])
            of_killed_driver.wait()
            wait_for(lambda: not step_names(earlier), "its end is known, and will be forgotten")
        assert step_names(earlier) == {spec.name}
        again = SrunLauncher(GENERIC, launcher.allocation, gone_deadline_s=2.0)
        again.settle([spec.name])
        assert again.down_nodes() == set()
        assert step_names(earlier) == {spec.name}
    finally:
        shell.run(["scancel", earlier.allocation.job])


@pytest.mark.slurm
def test_a_trial_whose_step_daemon_was_killed_is_ended_and_not_blamed(
    launcher: SrunLauncher, minicluster: Minicluster, tmp_path: Path
) -> None:
    """Nobody notices: its ranks go on, srun waits for them, and Slurm lists the step for ever."""
    impatient = SrunLauncher(GENERIC, launcher.allocation, gone_deadline_s=2)
    for first, limit_s in enumerate((3, 60)):  # a slow machine may reach the first one before
        spec = trial(tmp_path, f"headless{limit_s}", HANG + SLEEP, timeout_s=limit_s)
        thread, outcomes = in_thread(
            lambda spec=spec, first=first: run_on(impatient, spec, first)  # type: ignore[misc]
        )
        wait_for(lambda: len(pids(spec)) == 2 or outcomes, "both ranks run, or time is up")  # noqa: B023
        processes.send(step_daemons(minicluster, launcher.nodes()[first]), signal.SIGKILL)
        thread.join()
        if outcomes[0].kind is not Kind.TIMEOUT:
            break
    assert not any(map(processes.is_running, pids(spec)))
    assert [(o.kind, o.lost_nodes) for o in outcomes] == [(Kind.PREEMPTED, ())], outcomes


@pytest.mark.slurm
def test_whoever_stops_a_search_does_not_wait_for_a_step_whose_daemon_was_killed(
    launcher: SrunLauncher, minicluster: Minicluster, tmp_path: Path
) -> None:
    patient = SrunLauncher(GENERIC, launcher.allocation, gone_deadline_s=3600)
    spec, stop, node = (
        trial(tmp_path, "headless", HANG + SLEEP),
        threading.Event(),
        launcher.nodes()[0],
    )
    thread, outcomes = in_thread(lambda: patient.run(spec, Lease("1", (node,)), stop))
    wait_for(lambda: len(pids(spec)) == 2, "both ranks run")
    killed = step_daemons(minicluster, node)
    assert killed
    processes.send(killed, signal.SIGKILL)
    stop.set()
    thread.join(600)  # of the hour
    [outcome] = outcomes
    # srun may have missed the daemon before the search was stopped.
    assert outcome.kind in (Kind.CANCELLED, Kind.NODE_FAILURE) and not outcome.lost_nodes
    assert not any(map(processes.is_running, pids(spec)))
    assert step_names(launcher) == {spec.name}


def step_daemons(minicluster: Minicluster, node: str) -> set[int]:
    of_node = daemons.node_processes(minicluster.config, node)
    return {pid for pid in of_node if processes.name(pid) == "slurmstepd"}


def prove(
    controller: FakeController,
    answer: Callable[[Sequence[str]], str],
    nodes: Sequence[str],
    answers: bool = True,
) -> tuple[tuple[str, ...], list[Sequence[str]]]:
    """What is not proven where nodes answer so, and which were asked together."""
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], environ: object, timeout_s: float) -> str:
        [names] = [a.partition("=")[2].split(",") for a in argv if a.startswith("--nodelist=")]
        asked.append(names)
        return answer(names)

    proof = NodeProof(GENERIC, Allocation("7", controller), deadline_s=0.2, patience_s=0.2, run=run)
    controller.answers = answers
    return proof.unproven(nodes, {"t-1"}), asked


def clean(nodes: Sequence[str]) -> str:
    return "".join(f"MESHTUNE_SWEPT {node} \n" for node in nodes)


def test_a_node_is_free_only_if_it_says_so_itself() -> None:
    nodes = ("n1", "n2", "n3")
    controller = FakeController([""])
    assert prove(controller, clean, nodes) == ((), [["n1", "n2", "n3"]])
    stuck = clean(("n1", "n3")) + "MESHTUNE_SWEPT n2 17,4\n"
    assert prove(controller, lambda _: stuck, nodes)[0] == ("n2",)
    assert prove(controller, lambda _: clean(["n9"]), nodes)[0] == nodes
    silent = "srun: error: Unable to contact slurm controller"
    assert prove(controller, lambda _: silent, nodes, answers=False)[0] == nodes


def test_a_node_that_is_down_is_not_asked() -> None:
    class Down(FakeController):
        def __call__(self, argv: list[str]) -> str:
            return "n1|down*" if argv[0] == "sinfo" else super().__call__(argv)

    assert prove(Down([""]), clean, ["n1"]) == ((), [])


@pytest.mark.parametrize(
    ("booted", "needed"),
    [
        ("2026-11-21T08:59:59", False),
        ("2026-11-21T09:00:00", True),  # the job has begun then
        ("2026-11-21T10:00:00", True),
        ("", True),
    ],
)
def test_nodes_are_asked_once_the_controller_may_have_forgotten_a_step(
    booted: str, needed: bool
) -> None:
    controller = FakeController([""])
    controller.booted = booted
    proof = NodeProof(GENERIC, Allocation("7", controller))
    assert proof.needed() == needed
    controller.booted = "2026-11-20T08:00:00"  # a backup takes over, which has been up for long
    assert proof.needed()


def test_a_step_that_slurm_lists_for_ever_costs_no_node_that_says_that_it_is_free() -> None:
    controller = FakeController(["7.1|t-1|n1"])
    allocation = Allocation("7", controller)

    def settle(answer: str) -> SrunLauncher:
        proof = NodeProof(
            GENERIC, allocation, deadline_s=0.2, patience_s=0.2, run=lambda *_: answer
        )
        launcher = SrunLauncher(GENERIC, allocation, gone_deadline_s=0.3, proof=proof)
        launcher.settle(["t-1"])
        return launcher

    assert settle(clean(["n1"])).down_nodes() == set()
    assert set(controller.cancelled) == {"7.1"}
    with pytest.raises(LauncherError, match=r"7\.1 on n1"):
        settle("")


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        ("7.4|sleep|n1", [["n1"]]),  # what an srun within the trial has started outlives that
        ("7.4|sleep|n2", []),  # on other nodes it is another's
        ("7.batch|batch|n1", []),
        ("7.5|meshtune-1-0002-1|n1", []),
    ],
)
def test_nodes_are_asked_where_a_trial_may_have_started_a_step(
    listed: str, asked: list[Sequence[str]]
) -> None:
    class Controller(FakeController):
        def __call__(self, argv: list[str]) -> str:
            started.extend(argv[2:3] if argv[:3] == ["scontrol", "show", "config"] else [])
            return argv[-1] if argv[0] == "scontrol" and "show" in argv else super().__call__(argv)

    found: list[Sequence[str]] = []
    started: list[str] = []  # questions for the controller's start

    def run(argv: Sequence[str], *_: object) -> str:
        found.append([a.partition("=")[2] for a in argv if a.startswith("--nodelist=")])
        return clean(["n1"])

    allocation = Allocation("7", Controller([listed]))
    proof = NodeProof(GENERIC, allocation, deadline_s=0.2, patience_s=0.2, run=run)
    proof.needed = lambda: False  # type: ignore[method-assign]
    started.clear()
    ender = StepEnder(allocation, proof, gone_deadline_s=5.0, patience_s=0.0)
    with subprocess.Popen(["true"]) as srun:
        srun.wait()
        step = Step("t-1", Lease("1", ("n1",)), frozenset({"t-1"}), srun)
        assert ender.end(step, str, threading.Event()) == ((), "")
    assert found == asked and not started


@pytest.mark.parametrize(("doubtful", "waited_for"), [(True, []), (False, ["7.1"])])
def test_a_step_whose_agents_are_lost_is_not_waited_for_if_its_nodes_are_free(
    monkeypatch: pytest.MonkeyPatch, doubtful: bool, waited_for: list[str]
) -> None:
    """Slurm lists the step of a killed daemon for a minute; a healthy one may end slowly."""
    monkeypatch.setattr("slurm.srun.ending._HURRIED_S", -1.0)
    controller = FakeController(["7.1|t-1|n1"])
    allocation = Allocation("7", controller)
    proof = NodeProof(GENERIC, allocation, run=lambda *_: clean(["n1"]))
    ender = StepEnder(allocation, proof, gone_deadline_s=0.2, patience_s=0.0)
    with subprocess.Popen(["true"]) as srun:
        srun.wait()
        step = Step("t-1", Lease("1", ("n1",)), frozenset({"t-1"}), srun)
        assert ender.end(step, str, threading.Event(), doubtful) == (
            (),
            "Slurm could not end its step 7.1",
        )
    assert controller.cancelled == waited_for


def test_silence_of_the_controller_proves_nothing_and_stops_nothing() -> None:
    controller = FakeController(["7.1|t-1|n1"])
    allocation = Allocation("7", controller)
    proof = NodeProof(GENERIC, allocation, deadline_s=0.2, patience_s=0.2, run=lambda *_: "")
    launcher = SrunLauncher(GENERIC, allocation, gone_deadline_s=0.3, proof=proof, patience_s=0)
    controller.answers = False
    assert launcher.down_nodes() == set()
    assert launcher.time_left_s() is None
    with pytest.raises(LauncherError):
        launcher.settle(["t-1"])
