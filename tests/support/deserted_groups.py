"""In which of its groups rank 0 gives up when nobody else comes; a program, started by a test.

Prints a JSON list of names. Without a timeout of its own, a group waits for half an hour.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist

from trainer.parallel.collectives import Traffic
from trainer.parallel.mesh import build_mesh
from trainer.plan.config import TrainConfig

RANKS = 8
CONFIG = {
    "model": {
        "num_layers": 2, "hidden_size": 16, "num_heads": 4, "vocab_size": 32, "seq_length": 8,
    },
    "data": "unused", "precision": "fp32", "tp": 2, "cp": 2, "pp": 2, "collective_timeout_s": 0.2,
}  # fmt: skip


def given_up(rank: int, folder: str) -> list[str]:
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = build_mesh(TrainConfig.parse(CONFIG), torch.device("cpu"), None, Traffic())
    groups = {
        "states": mesh.states.group,
        "cp": mesh.cp.group,
        "tp": mesh.tp.group,
        "pp": mesh.pp.group,
        "lane": mesh.replicas(2, 1, "gather"),
        "embedding": mesh.embedding,
    }
    names = []
    for name, group in groups.items() if rank == 0 else ():
        assert group is not None
        with contextlib.suppress(RuntimeError):
            group.all_reduce(torch.zeros(1), "totals")
            continue
        names.append(name)
    dist.barrier()  # the others stay as long
    return names


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        others = []
        for rank in range(1, RANKS):
            pid = os.fork()
            if pid == 0:
                given_up(rank, folder)
                os._exit(0)
            others.append(pid)
        print(json.dumps(given_up(0, folder)), flush=True)
        for pid in others:
            os.waitpid(pid, 0)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
