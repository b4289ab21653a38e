"""The network of the slow-links benchmark; speeds are the benchmark's own business."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.slow_links import paper
from benchmarks.slow_links.cpu_share import CpuShareError, CpuShares
from benchmarks.slow_links.network import NetworkError, SlowNetwork, check_machine, remove_stale
from benchmarks.slow_links.processes import ProcessError, Processes
from benchmarks.slow_links.selfcheck import transfer_mbit_per_s

ROOT = Path(__file__).parents[2]


@pytest.fixture
def network() -> Iterator[SlowNetwork]:
    try:
        check_machine()
        made = SlowNetwork(2, 200.0).__enter__()
    except NetworkError as error:
        pytest.skip(f"no namespaces here: {error}")
    yield made
    made.__exit__()


def names(prefix: str) -> list[str]:
    folders = (Path("/run/netns"), Path("/sys/class/net"))
    return [p.name for f in folders if f.is_dir() for p in f.iterdir() if p.name.startswith(prefix)]


def test_what_crosses_a_link_is_counted_and_what_stays_in_a_node_is_not(
    network: SlowNetwork, tmp_path: Path
) -> None:
    before = network.link_bytes(0)
    transfer_mbit_per_s(network, 0, 0, tmp_path, 2**20)
    inside = network.link_bytes(0) - before
    assert inside < 10_000
    transfer_mbit_per_s(network, 0, 1, tmp_path, 2**20)
    assert network.link_bytes(0) - before - inside > 2**20


def test_leaving_a_network_leaves_nothing(network: SlowNetwork) -> None:
    mine = f"sl{os.getpid()}"
    assert len(names(mine)) == 5  # a bridge, two ports, two namespaces
    network.__exit__()
    assert names(mine) == []


def test_what_a_killed_run_left_is_removed_by_the_next(network: SlowNetwork) -> None:
    code = (
        "import sys; from benchmarks.slow_links.network import SlowNetwork\n"
        "SlowNetwork(2, 100.0).__enter__(); print('made', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "made\n"
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=250)
    assert len(names(f"sl{child.pid}")) == 5
    remove_stale()
    assert names(f"sl{child.pid}") == []
    assert len(names(f"sl{os.getpid()}")) == 5  # its own is in use


def test_a_failing_process_is_reported_with_what_it_printed(tmp_path: Path) -> None:
    def fail() -> int:
        os.write(2, b"no such luck\n")  # pytest has replaced sys.stderr
        return 3

    with (
        pytest.raises(ProcessError, match=r"1: 3(.|\n)*no such luck"),
        Processes([lambda: 0, fail], tmp_path, timeout_s=250.0) as both,
    ):
        assert list(both.lines()) == []
        both.wait()


def test_a_process_is_under_its_quota_until_it_is_lifted(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        shares = CpuShares(1, 0.1).__enter__()
    except CpuShareError as error:
        child.kill()
        child.wait()
        pytest.skip(f"no cpu cgroups here: {error}")
    try:
        group = Path(f"/proc/{child.pid}/cgroup")
        shares.limit([child.pid])
        assert f"meshtune-sl{os.getpid()}/0" in group.read_text()
        shares.lift([child.pid])
        assert f"meshtune-sl{os.getpid()}" not in group.read_text()
    finally:
        child.kill()
        child.wait()
        shares.__exit__()


def test_the_scarcity_of_each_assumption_gives_the_papers_ratio_back() -> None:
    found = paper.scarcities()
    topo = 1 / paper.SCALING_EFFICIENCY
    for name, volume, published in (
        ("ZeRO-3", paper.ZERO3_VOLUME, paper.ZERO_TOPO_OVER_ZERO3),
        ("ZeRO++", paper.ZERO_PP_VOLUME, paper.ZERO_TOPO_OVER_ZERO_PP),
    ):
        alone = found[f"{name}, no overlap"].value
        hidden = found[f"{name}, full overlap"].value
        assert (1 + volume * alone) / topo == pytest.approx(published)
        assert volume * hidden / topo == pytest.approx(published)
