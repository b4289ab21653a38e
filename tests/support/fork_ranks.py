"""Runs the trainer's ranks as forks of one process that has torch imported.

Reads one JSON object per line: ``configs`` (one path per rank), ``logs`` (a folder), ``kill``
(rank to kill when the line that follows appears in rank 0's log, if any, by the signal that follows
that, or SIGKILL), ``environ`` (more of it), ``slurm_shortest_s`` (instead of ``energy``'s own).
Answers with ``codes``, negative for a signal; null for a rank that was still there two minutes
after the first had gone, or at the deadline.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ports import free_port

from foundation import energy
from trainer.__main__ import main

DEADLINE_S = 600.0
LEAVE_S = 120.0


def become_rank(rank: int, job: dict[str, Any], port: int) -> None:
    configs, logs = job["configs"], Path(job["logs"])
    energy.SLURM_SHORTEST_S = job.get("slurm_shortest_s", energy.SLURM_SHORTEST_S)
    os.environ.update(
        job.get("environ", {}),
        RANK=str(rank),
        WORLD_SIZE=str(len(configs)),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(len(configs)),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    for name, target in (("out", 1), ("err", 2)):
        log = os.open(logs / f"rank{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, target)
    code = 99
    try:
        code = main([configs[rank]])
    finally:
        sys.stdout.flush()
        os._exit(code)


def run(job: dict[str, Any]) -> list[int | None]:
    configs, logs, kill = job["configs"], Path(job["logs"]), job.get("kill")
    port = free_port()
    children: dict[int, int] = {}
    for rank in range(len(configs)):
        pid = os.fork()
        if pid == 0:
            become_rank(rank, job, port)
        children[pid] = rank
    codes: list[int | None] = [None] * len(configs)
    deadline = time.monotonic() + DEADLINE_S
    while children and time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[children.pop(pid)] = os.waitstatus_to_exitcode(status)
            deadline = min(deadline, time.monotonic() + LEAVE_S)
        elif kill and kill[1] in (logs / "rank0.out").read_text():
            number = signal.Signals[kill[2]] if len(kill) > 2 else signal.SIGKILL
            os.kill(next(p for p, rank in children.items() if rank == kill[0]), number)
            kill = None
        else:
            time.sleep(0.01)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return codes


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)
