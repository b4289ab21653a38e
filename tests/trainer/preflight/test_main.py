"""What every rank of a preflight measures, and what is left of one that fails."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.ports import free_port
from trainer.preflight.probe import OPERATIONS

DEADLINE_S = 600.0
# The preflight, whose second rank dies when one measurement of the links is on record.
DIES = """
import os, signal, sys, time
from pathlib import Path
from trainer.preflight import __main__ as preflight
from trainer.preflight.probe import Links
measured, seconds = [], Links.seconds
def dies(self, *what):
    if measured and os.environ["RANK"] == "1":
        while "collectives" not in Path(sys.argv[1]).read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    measured.append(what)
    return seconds(self, *what)
Links.seconds = dies
sys.exit(preflight.main(sys.argv[1:]))
"""


def start(
    out: Path, world_size: int, program: Sequence[str] = ("-m", "trainer.preflight")
) -> list[subprocess.Popen[bytes]]:
    """The ranks of one node, as a launcher starts them."""
    port = free_port()
    ranks = []
    for rank in range(world_size):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")} | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        argv = [sys.executable, *program, str(out), "--quick"]
        ranks.append(subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL))
    return ranks


def test_two_ranks_measure_themselves_and_their_links(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert [r.wait(DEADLINE_S) for r in start(out, 2)] == [0, 0]
    result = json.loads(out.read_text())
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
    ranks = start(out, 2, ("-c", DIES))
    assert ranks[1].wait(DEADLINE_S) == -signal.SIGKILL
    assert ranks[0].wait(DEADLINE_S) > 0
    result = json.loads(out.read_text())
    assert result["status"] == "error"
    assert "ended after collectives operation=" in result["message"]
    assert result["gemm"] and result["copy"] and len(result["collectives"]) == 1


def test_a_single_process_has_no_links_to_measure(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert start(out, 1)[0].wait(DEADLINE_S) == 0
    result = json.loads(out.read_text())
    assert result["status"] == "ok" and "collectives" not in result
