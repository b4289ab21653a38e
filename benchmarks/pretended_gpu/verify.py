"""The checks of ``meshtune verify-gpu`` on the pretended device: all but their numbers.

python -m benchmarks.pretended_gpu.verify [NAME ...]     # a JSON object a line
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from benchmarks.pretended_gpu import device, ranks, steps
from benchmarks.pretended_gpu.timeline import RaceError, timeline
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.runtime.device import Device
from trainer.verify import checks, plan

KINDS = ("facts", "attention", "quantization", "losses", "sharded", "race", "layers")


def prepare() -> None:
    """Give the checks the pretended device, and take what needs numbers out of them."""
    steps.prepare()
    own_job, own_load, own_sees = checks._job, Checkpoints.load, checks._sees_races

    @contextlib.contextmanager
    def job(where: Device, size: int = 1) -> Iterator[None]:
        if where.type == "cpu":
            with own_job(where, size):
                yield
        else:
            ranks.start(0, size)
            try:
                with device.pretended():
                    yield
            finally:  # as a process that ends: the next check's job may be of real ranks
                dist.destroy_process_group()
                gc.collect()
                timeline.crossing.clear()

    def sees(where: Device) -> bool:
        try:
            return own_sees(where)
        except RaceError:  # there are no numbers; the order of streams tells
            return True

    replaced: Any = checks
    replaced._sees_races = sees
    replaced._job = job
    replaced.difference = lambda found, expected: 0.0
    replaced.LOSS_TOLERANCE = dict.fromkeys(checks.LOSS_TOLERANCE, float("inf"))
    replaced.SIZES = {name: {**size, "num_layers": 2} for name, size in checks.SIZES.items()}
    loads: Any = Checkpoints
    loads.load = lambda self, trainer: (
        own_load(self, trainer) if trainer.device.type == "cpu" else checks.STEPS
    )


def tell(names: list[str]) -> None:
    """Run checks of these names, default all that this device can; print what they find."""
    for check in plan.planned(1):
        if check.kind not in KINDS or (names and check.name not in names):
            continue
        if "compile" in check.settings or check.settings.get("plain"):
            continue  # the compiler asks the device itself
        inside = check.kind in ("attention", "quantization")
        with device.pretended() if inside else contextlib.nullcontext():
            few = {"steps": 2} if "steps" in check.settings else {}
            found = checks.run(check.kind, check.settings | few, "cuda")
        print(json.dumps({"check": check.name, **found}), flush=True)


if __name__ == "__main__":
    prepare()
    tell(sys.argv[1:])
