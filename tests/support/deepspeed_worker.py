"""Trains cases by either engine, each in ranks of its own; a program, started by the tests.

Reads a JSON list of ``{"id", "ranks", "config", "hide"}``; ``hide`` makes DeepSpeed missing. Writes
one JSON line per job, from rank 0: ``{"id", "result"}`` or, where a configuration was refused,
``{"id", "refused"}``. DeepSpeed keeps global state, so that every job has fresh processes; it is
imported once, before they fork.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_worker import RandomTokens, run_in_forks

from trainer.deepspeed import engine as deepspeed_engine
from trainer.deepspeed.engine import DeepSpeedTrainer
from trainer.loop import train
from trainer.model.transformer import Block
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

KEPT: list[Any] = []


class KeptTrainer(DeepSpeedTrainer):
    """Stays, to be looked into; counts the copies that the backward pass can gather from."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        KEPT.append(self)
        self.secondary = 0
        backward = self.engine.backward

        def counted(loss: torch.Tensor) -> None:
            copies = [p.ds_secondary_tensor for p in split_parameters(self)]
            self.secondary = sum(copy.numel() for copy in copies if copy is not None)
            backward(loss)

        self.engine.backward = counted


def split_parameters(trainer: DeepSpeedTrainer) -> list[Any]:
    parameters = trainer.engine.module.parameters()
    return [p for p in parameters if hasattr(p, "ds_tensor") and not p.ds_persist]


def look_into(trainer: KeptTrainer) -> dict[str, Any]:
    """Elements that this rank holds, and what the engine says of itself."""
    parameters = list(trainer.engine.module.parameters())
    split = split_parameters(trainer)
    states = trainer.engine.basic_optimizer.state.values()
    return {
        "parameters": sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
        "split": sum(p.ds_numel for p in split),
        "own": sum(p.ds_tensor.numel() for p in split),
        "secondary": trainer.secondary,
        "moments": sum(state["exp_avg"].numel() for state in states),
        "dtype": str(parameters[0].dtype),
    }


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    calls = 0
    forward = Block.forward

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return forward(*args)

    Block.forward = counted
    deepspeed_engine.DeepSpeedTrainer = KeptTrainer
    config = TrainConfig.parse(job["config"])
    lines: list[str] = []
    result = train(config, RandomTokens(config.model.vocab_size), lines.append)
    seen: list[Any] = [None] * job["ranks"]
    dist.all_gather_object(seen, (result["losses"], result["grad_norms"]))
    inside = [look_into(trainer) for trainer in KEPT]
    return {
        **result,
        "progress": lines,
        "ranks_agree": all(s == seen[0] for s in seen),
        "block_calls": calls,
        **(inside[0] if inside else {}),
    }


def run_rank(job: dict[str, Any], folder: Path, rank: int) -> None:
    ranks = job["ranks"]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    if job.get("hide"):
        sys.modules["deepspeed"] = None  # type: ignore[assignment]
    store = dist.FileStore(str(folder / f"{job['id']} store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    answers = os.fdopen(os.dup(1), "w")
    said = folder / f"{job['id']} said by {rank}"
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 1)
    try:
        outcome: dict[str, Any] = {"result": run_job(job)}
    except ConfigError as error:
        outcome = {"refused": str(error)}
    dist.barrier()
    sys.stdout.flush()
    if rank == 0:
        if "result" in outcome:
            outcome["result"]["said"] = said.read_text()
        print(json.dumps({"id": job["id"], **outcome}), file=answers, flush=True)


def import_once() -> None:
    os.environ["DS_ACCELERATOR"] = "cpu"
    with contextlib.redirect_stdout(sys.stderr):
        import deepspeed.pipe
        import deepspeed.runtime.zero.muon.original_muon
        import deepspeed.runtime.zero.stage3  # noqa: F401


def main() -> int:
    jobs = json.load(sys.stdin)
    if importlib.util.find_spec("deepspeed"):
        import_once()
    with tempfile.TemporaryDirectory() as folder:
        ended_well = (
            run_in_forks(job["ranks"], functools.partial(run_rank, job, Path(folder)))
            for job in jobs
        )
        return int(not all(ended_well))


if __name__ == "__main__":
    sys.exit(main())
