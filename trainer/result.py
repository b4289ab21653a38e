"""Metrics of a training run, and the file that holds them, ``result.json``.

The first rank that knows the outcome writes it: rank 0 at the end of training, or the rank that
failed. The file appears whole or not at all and is never replaced within a run, so that the root
cause stands even if other ranks fail later. Torch-free.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import statistics
import uuid
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from foundation.energy import in_all
from foundation.files import finite
from foundation.writing import sync_folder, write_atomically
from trainer.plan.config import TrainConfig
from trainer.plan.flops import executed_flops, speed

RESULT_NAME = "result.json"
Failure = Literal["oom", "invalid", "error"]
# Metrics of an ``ok`` result, which may be a search's objective. Keys that begin with
# ``communication_`` are tables by purpose and link.
FIGURES = (
    *("tflops_per_gpu", "hardware_tflops_per_gpu", "tokens_per_second"),
    *("tokens_per_second_per_gpu", "samples_per_second", "step_time_s", "dp", "global_batch_size"),
    *("parameters", "loss", "skipped_steps", "grad_norm", "peak_memory_bytes", "peak_memory_rank"),
    *("peak_reserved_bytes", "world_size"),
)


def completed(
    config: TrainConfig,
    world_size: int,
    training: Mapping[str, Any],
    memory: Sequence[Mapping[str, int]],
    energy: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Result of a run that ended: ``ok``, or ``diverged`` with the first bad step.

    ``training`` is what ``trainer.loop.train`` returned on one rank, ``memory`` every rank's
    ``Device.memory``, ``energy`` every rank's ``Meter.used``. Rates are over the measured steps;
    ``loss`` includes warm-up, and ``peak_memory_bytes`` is the largest ``allocated`` of all ranks.
    """
    losses = list(training["losses"])
    saves_s = list(training["checkpoints_s"])
    saves = {"median": statistics.median(saves_s), "all": saves_s} if saves_s else None
    validations = {str(step): loss for step, loss in training["validation_losses"].items()}
    table = {key: [rank[key] for rank in memory] for key in memory[0]}
    peak = max(table["allocated"])
    common = {
        "loss": losses,
        "skipped_steps": training["skipped_steps"],
        "grad_norm": list(training["grad_norms"]),
        "peak_memory_bytes": peak,
        "peak_memory_rank": table["allocated"].index(peak),
        "peak_reserved_bytes": max(table["reserved"]),
        "memory": table,
        "device": training["device"],
        **({"validation_loss": validations} if validations else {}),
        **({"checkpoint_s": saves} if saves else {}),
        **{f"communication_{name}": table for name, table in training["communication"].items()},
        "world_size": world_size,
        "versions": versions(),
    }
    if training["kernels"] is not None:
        common["kernels"] = training["kernels"]
    trouble = _divergence(losses, training["grad_norms"], training["skipped_steps"])
    if trouble:
        where, message = trouble
        return {"status": "diverged", "where": where, "message": message, **common}
    measured = list(training["step_times_s"])[config.warmup_steps :]
    used = in_all(energy) if energy else {}
    return {"status": "ok", **_speed(config, world_size, measured), **common, **used}


def step_line(
    config: TrainConfig, world_size: int, number: int, step_time_s: float, more: Mapping[str, float]
) -> str:
    """Metrics of one step, counted from 1, as a line for the process that follows the trial."""
    figures = {"step": number, "step_time_s": step_time_s, **rates(config, world_size, step_time_s)}
    figures |= more
    return "MESHTUNE_STEP " + json.dumps(figures)


def rates(config: TrainConfig, world_size: int, step_time_s: float) -> dict[str, float]:
    """Rates of one step, under the names that a result has."""
    speed = _speed(config, world_size, [step_time_s])
    return {key: value for key, value in speed.items() if isinstance(value, float)}


def _speed(config: TrainConfig, world_size: int, measured: Sequence[float]) -> dict[str, Any]:
    dp = config.data_parallel(world_size)
    batch = config.mbs * config.gas * dp
    executed = executed_flops(
        config.model,
        batch,
        config.recompute,
        config.keeps_products,
        config.recompute_every,
        config.chunked_loss,
    )
    return speed(config.model, world_size, dp, batch, measured, executed)


def _divergence(
    losses: Sequence[float], norms: Sequence[float], skipped_steps: int
) -> tuple[str, str] | None:
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return f"step {step}", f"the loss of step {step} is {loss}"
    overflows = [step for step, norm in enumerate(norms) if not math.isfinite(norm)]
    if len(overflows) > skipped_steps:
        step = overflows[-1]
        return f"step {step}", f"the gradient norm of step {step} is {norms[step]}"
    if losses and skipped_steps >= len(losses):
        said = f"all {len(losses)} optimizer steps were skipped: the gradients overflowed"
        return f"step {len(losses) - 1}", said
    return None


def failure(
    status: Failure, where: str, message: str, rank: int, memory: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Result of a run that failed in the phase ``where``; ``rank`` was the first to see it."""
    return {
        "status": status,
        "where": where,
        "message": message,
        "rank": rank,
        "peak_memory_bytes": memory["allocated"] if memory else None,
        "memory": dict(memory) if memory else None,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("meshtune", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def write_result(directory: Path, result: Mapping[str, Any]) -> bool:
    """Write ``result.json`` unless it exists; returns whether this call did.

    A hard link is atomic and exclusive on local disks, NFS and Lustre; the file is complete and on
    disk before it gets its name. NaN and infinities become null.
    """
    path = directory / RESULT_NAME
    draft = directory / f".{RESULT_NAME}.{uuid.uuid4().hex}"
    try:
        text = json.dumps(finite(result), indent=1, allow_nan=False)
        write_atomically(draft, text + "\n", sync=True)
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(directory)
    return True


def clear_result(directory: Path) -> None:
    (directory / RESULT_NAME).unlink(missing_ok=True)
