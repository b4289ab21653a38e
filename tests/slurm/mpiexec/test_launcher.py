"""What only the mpiexec launcher does, on a real MPI: hosts, their loss, and nothing left behind.

What every launcher does is tested in ``test_contract.py``.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm import processes
from slurm.kernel import state_and_parent
from slurm.launcher import LauncherError
from slurm.mpiexec import agents
from slurm.mpiexec.launcher import MpiexecLauncher, essence
from slurm.outcome.kinds import Kind
from slurm.trial import Lease, TrialSpec
from support.launched_trials import (
    HANG,
    SLEEP,
    assert_ranks_ended,
    in_thread,
    marked,
    pids,
    run_on,
    trial,
)
from support.waiting import wait_for

Make = Callable[..., MpiexecLauncher]

SAY_WHO = """
import json, os
from pathlib import Path
names = ["ON_HOST", "OF_THE_DRIVER", "PBS_JOBID", "OMP_NUM_THREADS"]
seen = {name: os.environ.get(name) for name in names}
Path("rank" + os.environ["RANK"]).write_text(json.dumps(seen))
if os.environ["RANK"] == "0":
    Path("result.json").write_text('{"status": "ok", "x": 1}')
"""
IGNORE_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def mpiexec_of(spec: TrialSpec) -> int:
    names = ("mpiexec", "mpiexec.hydra", "orterun", "mpirun", "prterun")
    [pid] = [pid for pid in marked(spec) if processes.name(pid) in names]
    return pid


def assert_gone(spec: TrialSpec) -> None:
    assert_ranks_ended(spec)
    assert not marked(spec)


def seen_by_ranks(spec: TrialSpec) -> list[dict[str, str]]:
    paths = [spec.directory / f"rank{i}" for i in range(spec.world_size)]
    return [json.loads(path.read_text()) for path in paths]


def test_ranks_are_on_the_leased_hosts_in_order_even_if_the_drivers_own_is_among_them(
    make_launcher: Make, tmp_path: Path
) -> None:
    launcher = make_launcher("node0", "node1", socket.gethostname(), "node2")
    spec = trial(tmp_path, "own", SAY_WHO, num_nodes=3)
    assert run_on(launcher, spec, first=1).kind is Kind.OK
    folders = [seen["ON_HOST"] for seen in seen_by_ranks(spec)]
    on = [folder and Path(folder).name for folder in folders]
    assert on == ["node1", "node1", None, None, "node2", "node2"]


def test_ranks_get_the_drivers_environment_but_not_what_is_true_of_its_host_only(
    make_launcher: Make, hosts: Any, tmp_path: Path
) -> None:
    environ = hosts.environ | {"OF_THE_DRIVER": 'a "b" $c\nd', "PBS_JOBID": "7"}
    environ.pop("OMP_NUM_THREADS", None)
    launcher = MpiexecLauncher(make_launcher()._hosts.values(), environ=environ)
    spec = trial(tmp_path, "environ", SAY_WHO, cpus_per_rank=3)
    assert run_on(launcher, spec).kind is Kind.OK
    for seen in seen_by_ranks(spec):
        assert seen["OF_THE_DRIVER"] == 'a "b" $c\nd'
        assert seen["PBS_JOBID"] is None
        assert seen["OMP_NUM_THREADS"] == "3"


def test_arguments_arrive_as_they_are_even_those_that_mean_something_to_mpiexec(
    make_launcher: Make, tmp_path: Path
) -> None:
    arguments = (":", "=", "=:", "a b", "$HOME", "", "-n", "--")
    code = "import sys; print('MESHTUNE_RESULT {}'); open('seen', 'w').write(repr(sys.argv[1:]))"
    spec = trial(tmp_path, "arguments", code, ranks_per_node=1)
    spec = replace(spec, argv=(*spec.argv, *arguments))
    assert run_on(make_launcher(), spec).kind is Kind.OK
    assert (spec.directory / "seen").read_text() == repr(list(arguments))


def test_a_rank_that_is_killed_is_a_crash_that_names_the_signal(
    make_launcher: Make, tmp_path: Path
) -> None:
    code = HANG + "os.environ['RANK'] == '3' and os.kill(os.getpid(), 11); " + SLEEP
    spec = trial(tmp_path, "killed", code, num_nodes=2)
    outcome = run_on(make_launcher(), spec)
    assert outcome.kind is Kind.CRASH
    assert outcome.message == "ended by signal 11"
    assert "rank 3 on node1 was ended by signal 11" in outcome.stderr_tail
    assert_gone(spec)


def test_words_in_a_trainers_mouth_decide_nothing(make_launcher: Make, tmp_path: Path) -> None:
    """Those of agents, and of an mpiexec that has lost a host."""
    code = (
        "import sys\n"
        "for out in (sys.stdout, sys.stderr):\n"
        "    print('\\n0 end 0 0\\n1 end 0 0\\n0 gone\\n1 gone\\n[[[[', file=out)\n"
        "    print('ORTE has lost communication with a remote daemon', file=out)\n"
        "    print('  Remote daemon: [[1,0],1] on node node0', file=out, flush=True)\n"
        "sys.exit(3)\n"
    )
    spec = trial(tmp_path, "forger", code)
    outcome = run_on(make_launcher(), spec)
    assert (outcome.kind, outcome.exit_code, outcome.message) == (Kind.CRASH, 3, "exit code 3")
    assert (outcome.lost_nodes, outcome.suspect_nodes) == ((), ())
    assert "ORTE has lost" in (spec.directory / "stdout.log").read_text()


def test_ranks_have_neither_the_secret_nor_a_descriptor_of_their_agents(
    make_launcher: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPICH's ranks have sockets of their mpiexec."""
    ports, listen = [], agents._listener

    def noted() -> socket.socket:
        listener = listen()
        ports.append(listener.getsockname()[1])
        return listener

    monkeypatch.setattr(agents, "_listener", noted)
    code = (
        "import json, os, socket, stat\n"
        "kept = [int(fd) for fd in os.listdir('/proc/self/fd')"
        " if os.path.exists('/proc/self/fd/' + fd)]\n"
        "ends = [socket.socket(fileno=fd) for fd in kept if stat.S_ISSOCK(os.fstat(fd).st_mode)]\n"
        "seen = [repr(end) for end in ends] + sorted(os.environ)\n"
        "open('rank' + os.environ['RANK'], 'w').write(json.dumps(seen))\n"
        "print('MESHTUNE_RESULT {}')\n"
    )
    spec = trial(tmp_path, "descriptors", code, num_nodes=2)
    assert run_on(make_launcher(), spec).kind is Kind.OK
    for seen in map(str, seen_by_ranks(spec)):
        assert str(ports[0]) not in seen and "MESHTUNE_DRIVER" not in seen
        assert "MESHTUNE_TRIAL" in seen


def test_an_agent_that_is_killed_blames_nobody_and_leaves_nothing(
    make_launcher: Make, hosts: Any, tmp_path: Path
) -> None:
    spec = trial(tmp_path, "agentless", IGNORE_TERM + HANG + SLEEP, num_nodes=2)
    launcher = make_launcher()
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: len(pids(spec)) == 4, "all ranks run")
    agent = state_and_parent(pids(spec)[0])[1]
    assert agent in hosts.processes_on_any()
    processes.send([agent], signal.SIGKILL)
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.PREEMPTED], outcomes
    assert outcomes[0].lost_nodes == outcomes[0].suspect_nodes == ()
    assert_gone(spec)


def test_a_rank_over_its_hosts_memory_is_told_from_a_crash(
    make_launcher: Make, tmp_path: Path
) -> None:
    code = HANG + "x = bytearray(900 << 20) if os.environ['RANK'] == '1' else b''; " + SLEEP
    spec = trial(tmp_path, "hog", code, memory_bytes_per_rank=256 << 20)
    outcome = run_on(make_launcher(), spec)
    assert outcome.kind is Kind.HOST_OOM, outcome
    assert_gone(spec)


def test_every_rank_of_a_trial_that_is_ended_has_all_the_grace_to_say_goodbye(
    make_launcher: Make, tmp_path: Path
) -> None:
    """Open MPI itself grants a second, and less to the others when one rank has ended."""
    code = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n" + HANG + "\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "time.sleep(int(os.environ['RANK']))\n"
        "open('bye' + os.environ['RANK'], 'w').close(); sys.exit(1)\n"
    )
    spec = trial(tmp_path, "bye", code, num_nodes=2, grace_s=30.0)
    launcher, stop = make_launcher(), threading.Event()
    thread, outcomes = in_thread(lambda: launcher.run(spec, Lease("1", ("node0", "node1")), stop))
    wait_for(lambda: len(pids(spec)) == 4, "all ranks run")
    stop.set()
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.CANCELLED], outcomes
    assert len(list(spec.directory.glob("bye?"))) == 4
    assert_gone(spec)


def test_a_host_that_is_down_fails_its_trial_and_leaves_the_pool(
    make_launcher: Make, hosts: Any, tmp_path: Path
) -> None:
    launcher = make_launcher()
    hosts.strike("node1")
    outcome = run_on(launcher, trial(tmp_path, "down", SAY_WHO, num_nodes=2))
    assert outcome.kind is Kind.NODE_FAILURE, outcome
    assert outcome.lost_nodes == ("node1",)
    assert launcher.down_nodes() == {"node1"}
    assert run_on(launcher, trial(tmp_path, "neighbour", SAY_WHO)).kind is Kind.OK


def test_a_host_that_dies_takes_its_trial_along_and_no_other(
    make_launcher: Make, hosts: Any, tmp_path: Path
) -> None:
    launcher = make_launcher()
    struck = trial(tmp_path, "struck", HANG + SLEEP, num_nodes=2)
    wait = HANG + "\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    spared = trial(tmp_path, "spared", wait + SAY_WHO)
    striking, outcomes = in_thread(lambda: run_on(launcher, struck))
    sparing, spared_outcomes = in_thread(lambda: run_on(launcher, spared, first=2))
    wait_for(lambda: len(pids(struck)) == 4 and len(pids(spared)) == 2, "both trials run")
    hosts.strike("node1")
    striking.join()
    assert [o.kind for o in outcomes] == [Kind.NODE_FAILURE], outcomes
    assert outcomes[0].lost_nodes == ("node1",), outcomes
    assert_gone(struck)
    (spared.directory / "go").touch()
    sparing.join()
    assert [o.kind for o in spared_outcomes] == [Kind.OK]


def test_ranks_whose_daemon_was_killed_are_ended_and_their_host_is_suspect(
    make_launcher: Make, hosts: Any, tmp_path: Path
) -> None:
    """Open MPI leaves them running, whatever it says."""
    launcher = make_launcher()
    spec = trial(tmp_path, "daemon", IGNORE_TERM + HANG + SLEEP, num_nodes=2)
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: len(pids(spec)) == 4, "all ranks run")
    hosts.kill_daemon("node1")
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.NODE_FAILURE], outcomes
    assert "lost communication" in outcomes[0].message
    assert outcomes[0].suspect_nodes == ("node1",)
    assert outcomes[0].lost_nodes == ()
    assert_gone(spec)


def test_ranks_whose_mpiexec_was_killed_are_ended_and_their_configuration_is_not_blamed(
    make_launcher: Make, tmp_path: Path
) -> None:
    launcher = make_launcher("node1", socket.gethostname())
    spec = trial(tmp_path, "killed", IGNORE_TERM + HANG + SLEEP, num_nodes=2)
    thread, outcomes = in_thread(lambda: run_on(launcher, spec))
    wait_for(lambda: len(pids(spec)) == 4, "all ranks run")
    processes.send([mpiexec_of(spec)], signal.SIGKILL)
    thread.join()
    assert [o.kind for o in outcomes] == [Kind.PREEMPTED], outcomes
    assert_gone(spec)


def test_what_a_successful_trial_left_in_sessions_of_its_own_is_ended(
    make_launcher: Make, tmp_path: Path
) -> None:
    leave = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    spec = trial(tmp_path, "leaves", leave + SAY_WHO)
    assert run_on(make_launcher(), spec).kind is Kind.OK
    assert not marked(spec)


def test_lines_that_ranks_print_at_once_are_whole_in_the_log(
    make_launcher: Make, tmp_path: Path
) -> None:
    code = (
        "import os\n"
        "for i in range(3000): print('rank', os.environ['RANK'], 'line', i, 'x' * 60)\n"
        "if os.environ['RANK'] == '3': print('MESHTUNE_RESULT {\"x\": 1}')\n"
    )
    spec = trial(tmp_path, "talk", code, num_nodes=2)
    outcome = run_on(make_launcher(), spec)
    assert outcome.result == {"x": 1}
    every = [f"rank {r} line {i} {'x' * 60}" for r in range(4) for i in range(3000)]
    lines = (spec.directory / "stdout.log").read_text().splitlines()
    assert sorted(lines) == sorted([*every, 'MESHTUNE_RESULT {"x": 1}'])


DRIVER = """
import sys, threading
from pathlib import Path
from slurm.mpiexec.hosts import Host
from slurm.mpiexec.launcher import MpiexecLauncher
from slurm.trial import Lease, TrialSpec
name, directory, *argv = sys.argv[1:]
nodes = ("node0", "node1")
spec = TrialSpec(name, Path(directory), tuple(argv), 2, 2, 600)
MpiexecLauncher(map(Host, nodes)).run(spec, Lease(name, nodes), threading.Event())
"""


@contextlib.contextmanager
def driver_of(spec: TrialSpec, hosts: Any) -> Iterator[int]:
    """A driver of two hosts that is killed at the end; gives the id of its mpiexec."""
    argv = [sys.executable, "-c", DRIVER, spec.name, spec.directory, *spec.argv]
    child = subprocess.Popen(argv, env=hosts.environ)
    try:
        wait_for(lambda: len(pids(spec)) == 4, "all ranks run")
        yield mpiexec_of(spec)
    finally:
        child.kill()
        child.wait()


def test_what_a_killed_driver_and_its_killed_mpiexec_left_is_settled(
    make_launcher: Make, hosts: Any, tmp_path: Path
) -> None:
    orphan = trial(tmp_path, "orphan", IGNORE_TERM + HANG + SLEEP, num_nodes=2)
    with driver_of(orphan, hosts) as mpiexec:
        pass
    processes.send([mpiexec], signal.SIGKILL)
    make_launcher().settle([orphan.name])
    assert_gone(orphan)


def test_an_mpiexec_that_hangs_ends_with_its_driver(hosts: Any, tmp_path: Path) -> None:
    """As one may whose host's daemon was killed: it waits for it, and for nobody else."""
    orphan = trial(tmp_path, "orphan", IGNORE_TERM + HANG + SLEEP, num_nodes=2)
    with driver_of(orphan, hosts) as mpiexec:
        processes.send([mpiexec], signal.SIGSTOP)
    wait_for(lambda: not processes.is_running(mpiexec), "mpiexec ends")
    wait_for(lambda: not marked(orphan), "its ranks end")


def test_hosts_that_do_not_answer_are_down_before_the_first_trial(
    make_launcher: Make, hosts: Any
) -> None:
    hosts.strike("node2")
    launcher = make_launcher()
    launcher.settle([])
    assert launcher.down_nodes() == {"node2"}


def test_where_no_host_answers_the_error_has_mpiexecs_words_and_a_command_to_try(
    make_launcher: Make, hosts: Any
) -> None:
    hosts.strike("node1")
    with pytest.raises(LauncherError, match="No route to host") as error:
        make_launcher("node1").settle([])
    assert "mpiexec -n 1 --host node1 hostname" in str(error.value)


def test_what_mpiexec_says_of_the_cause_comes_before_what_else_it_prints() -> None:
    banner = "\n".join(f"{i} * Welcome to the cluster. All use is monitored. *" for i in range(20))
    said = essence(f"{banner}\nssh: connect to host n7 port 22: No route to host\n{'-' * 70}\n")
    assert said.startswith("ssh: connect to host n7 port 22: No route to host 0 * Welcome")
    assert len(said) == 300
    assert essence("-" * 70 + "\n\n") == "nothing"
