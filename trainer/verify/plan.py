"""The checks of ``meshtune verify-gpu``, cheapest first, in four parts. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Check:
    """One check, in a process of its own.

    ``kind`` names the function of ``trainer.verify.checks`` and ``settings`` are what it is given;
    ``search`` is a search by the command line.
    """

    name: str
    part: int
    kind: str
    limit_s: float
    remedy: str
    settings: dict[str, Any] = field(default_factory=dict)
    gpus: int = 1


_FLASH = "install the build of torch for this GPU (CUDA or ROCm); see the message for the kernel"
_LOSS = "do not search over this setting here, and report the losses as an issue"
_SHARDED = "do not use this placement or axis here, and report the message as an issue"
_LAYER = "leave this variant out of a space for this GPU"

_ONE_RANK: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {},
    "fp16": {"precision": "fp16"},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "documents": {"documents": {}},
    "goldfish": {"goldfish": {}},
    "tune_kernels": {"tune_kernels": True},
    "compile": {"compile": True},
}
_SHARDS: dict[str, dict[str, Any]] = {
    "zero 1": {"zero_stage": 1},
    "zero 2": {"zero_stage": 2},
    "zero 3": {"zero_stage": 3, "recompute": "selective"},
    "hpz": {"placement": "hpz"},
    "zero++": {"placement": "zero++"},
    "zero_topo": {"placement": "zero_topo", "ranks_per_pair": 2},
    "tp": {"tp": 2, "sequence_parallel": True, "zero_stage": 1},
    "cp": {"cp": 2, "zero_stage": 3},
    "grid": {"gx": 2, "gy": 2, "gz": 2},
}
_VARIANTS: dict[str, dict[str, Any]] = {
    "compiled": {"compile": True},
    "plain torch, compiled": {"plain": True},
    "eager": {},
    "selective": {"recompute": "selective"},
}


def planned(gpus: int) -> Iterator[Check]:
    """All checks for a node with so many GPUs."""
    yield Check("device", 1, "facts", 60, "check the driver: nvidia-smi or rocm-smi")
    yield Check("attention", 1, "attention", 90, _FLASH)
    yield Check(
        "quantization", 1, "quantization", 120, "install triton, and a C compiler on PATH or in CC"
    )
    for name, settings in _ONE_RANK.items():
        limit_s = 120.0 if name == "compile" else 60.0
        yield Check(f"losses, {name}", 1, "losses", limit_s, _LOSS, settings)
    for name, settings in _SHARDS.items():
        yield Check(f"sharded, {name}", 2, "sharded", 60, _SHARDED, settings)
    yield Check(
        "out of memory", 2, "out_of_memory", 90,
        "report the message: a search would take it for a crash, and learn nothing from it",
    )  # fmt: skip
    for size in ("1B", "8B"):
        for name, settings in _VARIANTS.items():
            yield Check(f"{size}, {name}", 3, "layers", 180, _LAYER, {"size": size, **settings})
    remedy = "compare trials' losses and stderr.log in the run's folder"
    if gpus > 1:
        yield Check(f"layouts on {gpus} GPUs", 4, "layouts", 270, remedy, {"gpus": gpus}, gpus)
    yield Check("search", 4, "search", 240, remedy)
