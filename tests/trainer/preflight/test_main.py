"""What every rank of a preflight measures, and what is left of one that fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.ports import free_port
from trainer.preflight.probe import OPERATIONS

DEADLINE_S = 120.0


def start(out: Path, world_size: int, *options: str) -> list[subprocess.Popen[bytes]]:
    """The ranks of one node, as a launcher starts them."""
    port = free_port()
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
    assert result["side_by_side"] is True and 0.001 <= result["overlap"] <= 1
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
