from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.power_cuts import kill_node, revive_node
from slurm import processes
from slurm.minicluster import cluster as mini, config as miniconf, daemons as minidaemons
from slurm.minicluster.config import runtime_folder
from support.listening import listening, only_loopback
from support.waiting import wait_for

needs_slurm = pytest.mark.slurm


@pytest.fixture
def directory() -> Iterator[Path]:
    """Where a test may have a cluster of its own; it is stopped in any case."""
    with tempfile.TemporaryDirectory(dir=runtime_folder()) as folder:
        yield Path(folder) / "m"
        mini.down(Path(folder) / "m")


def config(**changes: object) -> miniconf.MiniclusterConfig:
    fields: dict[str, object] = {
        "directory": "/d", "hostname": "host", "user": "root", "node_prefix": "n",
        "num_nodes": 3, "gpus_per_node": 2, "mem_per_node_mib": 500, "base_port": 17000,
        "cgroup": "v1", "own_name": True, "clients_on_loopback": True,
    }  # fmt: skip
    return miniconf.MiniclusterConfig(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_daemon_has_a_port_of_its_own() -> None:
    text = miniconf.slurm_conf(config(), on_loopback=True)
    assert "SlurmctldPort=17000\n" in text
    assert "NodeName=n[1-3]" in text
    assert "Port=[17001-17003]" in text
    assert list(config().ports()) == [17000, 17001, 17002, 17003]


def test_without_cgroups_nothing_refers_to_them() -> None:
    bare = config(cgroup=None)
    assert "cgroup" not in miniconf.slurm_conf(bare, on_loopback=True)
    assert "Constrain" not in miniconf.cgroup_conf(bare)


def test_cgroup_v2_does_not_ask_systemd() -> None:
    text = miniconf.cgroup_conf(config(cgroup="v2"))
    assert "CgroupPlugin=cgroup/v2" in text
    assert "IgnoreSystemd=yes" in text


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (0, ""),
        (1, "NodeName=n[1-3] Name=gpu File=/d/nvidia0\n"),
        (8, "NodeName=n[1-3] Name=gpu File=/d/nvidia[0-7]\n"),
    ],
)
def test_gres_conf_lists_the_fake_gpus(gpus: int, expected: str) -> None:
    assert miniconf.gres_conf(config(gpus_per_node=gpus)) == expected


@pytest.mark.parametrize(
    ("nodes", "gpus", "expected"), [(1, 1, "1 node, 1 GPU and"), (2, 0, "2 nodes, 0 GPUs and")]
)
def test_the_status_counts_in_the_singular_too(nodes: int, gpus: int, expected: str) -> None:
    cluster = mini.Minicluster(config(num_nodes=nodes, gpus_per_node=gpus))
    assert expected in str(mini.Status(cluster, {}, ()))


@pytest.mark.parametrize("text", ["", "2", "2T", "0G", "-1G", "two"])
def test_a_strange_memory_size_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini, "missing", lambda: None)
    with pytest.raises(mini.MiniclusterError, match="2G or 1500M"):
        mini.up(tmp_path / "new", mem_per_node=text)
    assert not (tmp_path / "new").exists()


def test_missing_programs_are_named_with_the_remedy() -> None:
    reason = mini.missing(("sh", "no-such-daemon"))
    assert reason is not None
    assert reason.startswith("no-such-daemon not found")
    assert "apt-get install" in reason


def test_a_folder_with_other_things_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini, "missing", lambda: None)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(mini.MiniclusterError, match="not empty"):
        mini.up(tmp_path)
    assert not mini.down(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@needs_slurm
def test_daemons_and_clients_listen_on_loopback_only(minicluster: mini.Minicluster) -> None:
    config = minicluster.config
    if not config.daemons_on_loopback:
        pytest.skip("this container's name is not that of 127.0.0.1, nor can it have another")
    # Messages of the step, its output, and what its ranks find each other by.
    srun = [shutil.which("srun") or "srun", "-N2", "--mpi=pmi2", "-u", "sh", "-c", "echo up; cat"]
    inside = ["--uts", "sh", "-c", 'hostname localhost; exec "$@"', "sh"] if config.own_name else []
    step = subprocess.Popen(
        [*(["unshare", *inside] if inside else []), *srun],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=minidaemons.environment(config.daemons_conf),
    )  # fmt: skip
    assert step.stdin is not None and step.stdout is not None
    try:
        assert [step.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        nodes = set().union(*(minidaemons.node_processes(config, n) for n in config.nodes))
        clients = {step.pid} | processes.descendants(step.pid)
        for who in (minidaemons.controller(config), nodes, clients):
            assert (found := listening(who)), "nobody listens: this test sees nothing"
            assert only_loopback(found), found
        if config.clients_on_loopback:
            assert "NoInAddrAny" in minicluster.conf.read_text()
    finally:
        step.stdin.close()
        assert step.wait(250) == 0
        step.stdout.close()


@needs_slurm
def test_a_job_passes_on_what_makes_its_clients_listen_on_loopback(
    minicluster: mini.Minicluster,
) -> None:
    conf = minicluster.run("srun", "-N1", "printenv", "SLURM_CONF").strip()
    assert conf == str(minicluster.config.daemons_conf)


@needs_slurm
def test_a_step_sees_its_fake_gpus(minicluster: mini.Minicluster) -> None:
    out = minicluster.run("srun", "-N1", "--gpus-per-node=2", "printenv", "CUDA_VISIBLE_DEVICES")
    assert out.strip() == "0,1"
    with pytest.raises(mini.MiniclusterError, match=r"[Rr]equested node configuration"):
        minicluster.run("srun", "-N1", "--gpus-per-node=3", "true")


@needs_slurm
def test_a_rank_over_its_memory_dies_as_out_of_memory(minicluster: mini.Minicluster) -> None:
    if not minicluster.config.cgroup:
        pytest.skip("cgroups do not work on this machine")
    hog = "x = bytearray(300 << 20); import time; time.sleep(60)"
    with pytest.raises(mini.MiniclusterError, match=r"Out Of Memory|oom.kill"):
        minicluster.run("srun", "-N1", "--mem=100M", "python3", "-c", hog)


@needs_slurm
def test_up_finds_a_cluster_that_is_up(minicluster: mini.Minicluster) -> None:
    again = mini.up(minicluster.conf.parent)
    assert not again.started
    assert again.config == minicluster.config


@needs_slurm
def test_status_shows_nodes_and_jobs(minicluster: mini.Minicluster) -> None:
    job = minicluster.run("sbatch", "--parsable", "-N2", "-Jwaiter", "-o/dev/null",
                          "--wrap=sleep 1000").strip()  # fmt: skip
    wait_for(lambda: "RUNNING" in str(mini.status(minicluster.conf.parent)), "the job runs")
    state = mini.status(minicluster.conf.parent)
    assert state is not None
    assert list(state.node_states) == list(minicluster.nodes)
    assert "waiter" in str(state)
    minicluster.run("scancel", job)
    wait_for(lambda: not minicluster.run("squeue", "-h"), "the job is gone")


@needs_slurm
def test_two_clusters_live_side_by_side_and_down_leaves_nothing(
    minicluster: mini.Minicluster, directory: Path
) -> None:
    second = mini.up(directory, num_nodes=2, gpus_per_node=0)
    assert not set(second.nodes) & set(minicluster.nodes)
    second.run("sbatch", "-N2", "-o/dev/null", "--wrap=srun sleep 1000")
    wait_for(lambda: "mixed" in second.node_states().values(), "the job runs")

    with ThreadPoolExecutor(2) as two:  # as two sessions of tests that end an abandoned one
        assert sorted(two.map(mini.down, [directory, directory])) == [False, True]

    assert not directory.exists()
    assert mini.status(directory) is None
    conf = str(second.conf)
    assert processes.with_environ(lambda env: env.get("SLURM_CONF") == conf) == set()
    assert set(minicluster.node_states().values()) == {"idle"}
    assert minicluster.run("srun", "-N8", "hostname").count("\n") == 8


@needs_slurm
@pytest.mark.usefixtures("minicluster")
def test_a_controller_that_was_killed_is_replaced(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose name is that of its network: the daemons stay on 127.0.0.1 even so."""
    monkeypatch.setattr(minidaemons, "names_loopback", lambda name: False)
    first = mini.up(directory, num_nodes=1)
    os.kill(int((directory / "slurmctld.pid").read_text()), 9)
    wait_for(lambda: not minidaemons.controller(first.config), "the controller is gone")
    assert mini.status(directory) is None
    second = mini.up(directory, num_nodes=2)
    assert second.started
    assert len(second.node_states()) == 2
    controller = listening(minidaemons.controller(second.config))
    assert only_loopback(controller) == second.config.own_name, controller


@needs_slurm
@pytest.mark.usefixtures("minicluster")
def test_where_cgroups_and_another_name_are_forbidden_it_comes_up_and_says_what_is_worse(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minidaemons, "names_loopback", lambda name: False)
    monkeypatch.setattr(minidaemons, "can_have_own_name", lambda: False)
    other = "v1" if minidaemons.cgroup_version() == "v2" else "v2"
    monkeypatch.setattr(minidaemons, "cgroup_version", lambda: other)
    cluster = mini.up(directory, num_nodes=2, start_s=5.0)
    assert not cluster.config.cgroup
    limits, network = cluster.notice.splitlines()
    assert limits.startswith("memory is not limited")
    assert network.startswith("the daemons listen on every network of this machine")
    assert cluster.run("srun", "-N2", "hostname").count("\n") == 2


UP_AND_DOWN = """
import sys
from pathlib import Path
from slurm import minicluster
cluster = minicluster.up(Path(sys.argv[1]), num_nodes=1)
print(cluster.notice, cluster.run("srun", "-N1", "echo", "it runs"))
minicluster.down(Path(sys.argv[1]))
"""


@needs_slurm
@pytest.mark.usefixtures("minicluster")
def test_it_comes_up_where_no_cgroups_are_mounted_at_all(directory: Path) -> None:
    hidden = ["unshare", "--mount", "sh", "-c", 'umount -R /sys/fs/cgroup; exec "$@"', "sh"]
    if subprocess.run([*hidden, "true"], capture_output=True).returncode:
        pytest.skip("this container forbids to hide its cgroups")
    command = [*hidden, sys.executable, "-c", UP_AND_DOWN, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.stdout.startswith("memory is not limited: no cgroups"), done.stderr
    assert "it runs" in done.stdout


@needs_slurm
def test_a_killed_node_goes_down_and_comes_back(minicluster: mini.Minicluster) -> None:
    victim, witness = minicluster.nodes[2], minicluster.nodes[3]
    step = subprocess.Popen(
        ["srun", "-N2", "-u", f"-w{victim},{witness}", "sh", "-c", "echo up; exec sleep 1000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert step.stdout is not None
    assert [step.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    kill_node(minicluster, victim)
    try:
        stderr = step.communicate(timeout=250)[1]
        # Where the controller is slow, srun has lost the node and given up before it is told so.
        assert f"Node failure on {victim}" in stderr or "Timed out waiting for job step" in stderr
        assert step.returncode != 0
        wait_for(lambda: minicluster.node_states()[victim].startswith("down"), "the node is down")
    finally:
        revive_node(minicluster, victim)
    wait_for(lambda: set(minicluster.node_states().values()) == {"idle"}, "all nodes are idle")
    assert minicluster.run("srun", "-N1", f"-w{victim}", "hostname")


@needs_slurm
def test_a_requeued_job_starts_again_soon(minicluster: mini.Minicluster, tmp_path: Path) -> None:
    script, log = tmp_path / "job.sh", tmp_path / "log"
    script.write_text(
        f"#!/bin/sh\n#SBATCH -N1 -o {log} --open-mode=append\n"
        'echo "start ${SLURM_RESTART_COUNT:-0}"\nexec sleep 1000\n'
    )
    job = minicluster.run("sbatch", "--parsable", str(script)).strip()
    wait_for(lambda: log.exists() and "start 0" in log.read_text(), "the job runs")
    minicluster.run("scontrol", "requeue", job)
    # With Slurm's defaults it takes more than two minutes.
    wait_for(lambda: "start 1" in log.read_text(), "the job runs again")
    minicluster.run("scancel", job)
    wait_for(lambda: not minicluster.run("squeue", "-h"), "the job is gone")
