"""What every rank of a preflight measures, and what is left of one that fails."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.preflight.network import network_adapters
from trainer.preflight.probe import OPERATIONS, GroupShape, group_shapes

DEADLINE_S = 120.0


def start(out: Path, world_size: int, *options: str) -> list[subprocess.Popen[bytes]]:
    """The ranks of one node, as a launcher starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world_size):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        argv = [sys.executable, "-m", "trainer.preflight", str(out), *options]
        ranks.append(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL))
    return ranks


def read(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return content


def test_two_ranks_measure_themselves_and_their_links(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert [r.wait(DEADLINE_S) for r in start(out, 2, "--quick")] == [0, 0]
    result = read(out)
    assert result["status"] == "ok"
    assert result["hosts"] == [socket.gethostname()] * 2
    assert {g["dtype"] for g in result["gemm"]} == {"bfloat16", "float32"}
    assert all(len(g["tflops"]) == 2 and min(g["tflops"]) > 0 for g in result["gemm"])
    found = {(p["operation"], p["size_bytes"]): p["seconds"] for p in result["collectives"]}
    assert {operation for operation, _ in found} == {*OPERATIONS, "send"}
    assert len(found) == 10 and all(seconds > 0 for seconds in found.values())


def test_a_rank_that_dies_costs_only_what_was_not_measured_yet(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    ranks = start(out, 2)
    deadline = time.monotonic() + DEADLINE_S
    while "collectives" not in read(out) and time.monotonic() < deadline:
        time.sleep(0.01)
    ranks[1].kill()
    assert ranks[0].wait(DEADLINE_S) not in (0, None)
    ranks[1].wait(DEADLINE_S)
    result = read(out)
    assert result["status"] == "error"
    assert "ended after collectives operation=" in result["message"]
    assert result["gemm"] and result["copy"] and result["collectives"]


def test_a_single_process_has_no_links_to_measure(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert start(out, 1, "--quick")[0].wait(DEADLINE_S) == 0
    result = read(out)
    assert result["status"] == "ok" and "collectives" not in result


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 4), (4, 8), (3, 6), (2, 1)])
def test_the_groups_of_every_layout_are_measured(nodes: int, per_node: int) -> None:
    """Of the layouts that fill one node, or so many nodes as are measured."""
    shapes = {(s.gpus, s.stride) for s in group_shapes(nodes, per_node)}
    for tp, dp, pp in itertools.product(range(1, nodes * per_node + 1), repeat=3):
        if per_node % tp == 0 and tp * dp * pp in (per_node, nodes * per_node):
            whole = [g for g in ((tp, 1), (dp, tp), (pp, tp * dp)) if g[0] > 1]
            inside = [g for g in whole if per_node % (g[0] * g[1]) == 0]
            across = [g for g in whole if g[0] * g[1] == nodes * per_node and per_node % g[1] == 0]
            assert shapes.issuperset([*inside, *across]), (tp, dp, pp)


@pytest.mark.parametrize(
    "shape", [GroupShape(2, 1, 1), GroupShape(2, 1, 4), GroupShape(4, 2, 4), GroupShape(4, 4, 8)]
)
def test_groups_of_a_shape_share_out_the_ranks(shape: GroupShape) -> None:
    groups = [tuple(shape.members(rank, 32)) for rank in range(32)]
    assert all(rank in group for rank, group in enumerate(groups))
    assert len(set(groups)) == 32 // shape.gpus
    assert all(len({r // 8 for r in group}) == shape.nodes for group in groups)


def test_ranks_of_a_block_that_is_not_full_only_wait() -> None:
    assert [bool(GroupShape(4, 2, 2).members(rank, 12)) for rank in range(12)] == [True] * 8 + [
        False
    ] * 4


def test_quick_measures_the_extremes_only() -> None:
    assert group_shapes(4, 8, quick=True) == [
        GroupShape(2, 1, 1), GroupShape(8, 1, 1), GroupShape(2, 1, 2), GroupShape(2, 1, 4),
        GroupShape(32, 4, 1), GroupShape(4, 4, 8),
    ]  # fmt: skip


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def interface(sysfs: Path, name: str, speed: str, state: str = "up", device: bool = True) -> None:
    put(sysfs / "class/net" / name / "speed", speed)
    put(sysfs / "class/net" / name / "operstate", state + "\n")
    if device:
        put(sysfs / "class/net" / name / "device/vendor", "0x1\n")


def test_the_adapters_of_a_job_are_the_fast_ones_of_the_right_kind(tmp_path: Path) -> None:
    assert network_adapters(tmp_path) == {}
    interface(tmp_path, "lo", "-1", device=False)
    interface(tmp_path, "eth0", "10000\n")
    interface(tmp_path, "eth1", "1000\n")
    interface(tmp_path, "bond0", "200000\n", device=False)
    assert network_adapters(tmp_path) == {"eth0": 1.25}
    for name, state in (("hsn0", "up"), ("hsn1", "up"), ("hsn2", "down")):
        interface(tmp_path, name, "200000\n", state)
    assert network_adapters(tmp_path) == {"hsn0": 25.0, "hsn1": 25.0}
    for name, rate, state in (
        ("mlx5_0", "400 Gb/sec (4X NDR)", "4: ACTIVE"),
        ("mlx5_1", "400 Gb/sec (4X NDR)", "1: DOWN"),
        ("mlx5_2", "100 Gb/sec (4X EDR)", "4: ACTIVE"),
    ):
        put(tmp_path / "class/infiniband" / name / "ports/1/rate", rate)
        put(tmp_path / "class/infiniband" / name / "ports/1/state", state)
    assert network_adapters(tmp_path) == {"mlx5_0:1": 50.0}
