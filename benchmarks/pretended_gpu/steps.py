"""Steps of the trainer on the pretended device: one case for each setting.

    python -m benchmarks.pretended_gpu.steps [NAME ...]     # a JSON object a line
    python -m benchmarks.pretended_gpu.steps --table        # into docs/results/gpu-kernels.md

A case runs two steps of a model with the widths of Llama 3.1 8B. Counted is the second.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import traceback
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import trainer.model.initialize
import trainer.model.tuning
import trainer.parallel.tensor
import trainer.quantization.blocks
import trainer.train
import trainer.zero.fsdp
from benchmarks.pretended_gpu import device, ranks, symmetric
from benchmarks.pretended_gpu.timeline import timeline
from benchmarks.trainer import gpu_tables as tables
from benchmarks.trainer.gpu_cases import CASES, LAYERS, WIDTHS, row
from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.runtime.device import Device, attention_backends

RANKS_PER_NODE = 8


class Tokens:
    """A dataset of one token."""

    def samples(
        self, first: int, count: int, *, seq_length: int, seed: int
    ) -> tuple[Tensor, Tensor]:
        tokens = torch.ones(count, seq_length, dtype=torch.int64)
        return tokens, tokens.clone()

    def starts(self, first: int, count: int, *, seq_length: int, seed: int) -> Tensor:
        return torch.zeros(count, seq_length + 1, dtype=torch.int64)


class _Kernels(ModuleType):
    """The GPU's quantization kernels, which Triton launches where torch does not see it."""

    @staticmethod
    def quantize(rows: Tensor, fmt: Format, out: Tensor) -> None:
        device.launch("quantize", [rows], [out])

    @staticmethod
    def dequantize(packed: Tensor, fmt: Format, out: Tensor) -> None:
        device.launch("dequantize", [packed], [out])

    @staticmethod
    def dequantize_sum(packed: Tensor, fmt: Format, out: Tensor, accumulate: bool) -> None:
        device.launch("dequantize_sum", [packed, *([out] if accumulate else [])], [out])


def prepare() -> None:
    """Give the trainer the pretended device."""
    device.install()
    # Times of a pretended device are for nobody.
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="pretended-gpu-")
    own_mesh: Any = SimpleNamespace(from_group=device.on_the_host(DeviceMesh.from_group))
    for module in (trainer.zero.fsdp, trainer.parallel.tensor):
        module.DeviceMesh = own_mesh  # type: ignore[attr-defined]
    symmetric.install()
    trainer.model.initialize.DRAW_ELEMENTS = 1 << 60  # one draw a matrix: nothing is drawn
    tuning: Any = trainer.model.tuning
    tuning.alternately = _times
    tuning._every = lambda own: [own]
    torch.distributed.broadcast_object_list = lambda *_, **__: None  # type: ignore[attr-defined]
    own = trainer.quantization.blocks.kernels_for
    kernels = _Kernels("kernels")
    blocks: Any = trainer.quantization.blocks
    blocks.kernels_for = lambda kind: kernels if kind == "cuda" else own(kind)


def _times(calls: dict[Any, Any], clock: Any) -> dict[Any, float]:
    """Runs each call once; times by which the first wins."""
    for call in calls.values():
        call()
    return {name: 1.0 + place for place, name in enumerate(calls)}


def step(world: int, settings: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    """Two steps of a job, as one of its ranks; figures of the second."""
    local = min(world, RANKS_PER_NODE)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
    }  # fmt: skip
    values = {"data": "", "device": "cuda", **settings}
    values["model"] = WIDTHS | values.get("model", {})
    config = TrainConfig.parse(values)
    ranks.start(rank, world)
    symmetric.forget()
    with device.pretended(), attention_backends("cuda"):
        training = trainer.train.Trainer(config, Device.of_this_rank("cuda"))
        training.step(0, Tokens())
        training.traffic.totals.clear()
        timeline.reset()
        training.step(1, Tokens())
        training.weights.wait()
    traffic = training.traffic.report(1)["bytes"]
    return {
        "kernels": dict(timeline.kernels),
        "bytes": dict(timeline.bytes),
        "waits": dict(timeline.waits),
        "traffic": traffic,
    }


def run(name: str) -> dict[str, Any]:
    """One case, and its layers' share if the table has them; or the error."""
    world, settings = CASES[name]
    device.use(device.MI250X if name.endswith("AMD") else device.H100)
    try:
        found = step(world, settings)
        if name in LAYERS:
            fewer = step(world, {**settings, "model": {"num_layers": WIDTHS["num_layers"] - 1}})
            found["layer"] = _difference(found, fewer)
        return {"name": name, **found}
    except Exception as error:
        return {"name": name, "error": str(error), "trace": traceback.format_exc()[-6000:]}
    finally:
        gc.collect()


def _difference(more: dict[str, Any], less: dict[str, Any]) -> dict[str, Any]:
    kernels = Counter(more["kernels"])
    kernels.subtract(less["kernels"])
    moved = sum(more["bytes"].values()) - sum(less["bytes"].values())
    return {"kernels": {name: n for name, n in sorted(kernels.items()) if n}, "bytes": moved}


def main() -> None:
    """Run cases, and print them or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    prepare()
    gc.freeze()  # or each case would look through all of torch's objects
    found = []
    for name in args.names or (LAYERS if args.table else CASES):
        found.append(run(name))
        if not args.table:
            print(json.dumps(found[-1]), flush=True)
    if args.table:
        head = "| a layer of Llama 3.1 8B, 8,192 tokens | kernels | products | copies | MiB moved |"
        tables.write("layers", head, [row(one) for one in found])


if __name__ == "__main__":
    main()
