"""Whole training steps on a pretended GPU: every setting, and what a layer asks of the device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from benchmarks.trainer import gpu_cases as cases, gpu_tables as tables
from trainer.plan.fields import Choices, Settings

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")

QUICK = {
    *cases.LAYERS, "zero 1", "zero++", "grid", "pp, zero bubble", "tuned", "documents, AMD",
    "masked", "offloaded", "tp, asynchronous, zero bubble",
}  # fmt: skip
ON_THE_HOST = {
    "data", "engine", "optimizer", "lr_scheduler", "seed", "device", "device_memory_bytes",
    "collective_timeout_s", "metrics", "save", "save_interval", "async_save", "load",
    "initial_load_path", "last_save_in_hf", "loss_mask", "validation", "keep_latest_k",
}  # fmt: skip
"""Settings that ask nothing of a device which other cases do not."""
OF_EXPERTS = {"ep", "moe_aux_loss_coeff", "moe_router_bias_update_rate"}
"""How many tokens each expert gets is known on a real device only."""
IN_GRAPHS = {"compile"}  # the compiler's own kernels

each = partial(pytest.mark.parametrize, "name")


PROGRAM = """
import json
from benchmarks.pretended_gpu import steps
from trainer import train
from trainer.model.offload import Offload
from trainer.parallel.collectives import Group
from trainer.zero.buckets import Bucket
steps.main()
own = train.cross_entropy
def reads(*args):
    loss = own(*args)
    loss.item()
    return loss
train.cross_entropy = reads
waits = steps.run("zero 1")["waits"]
Bucket.wait = lambda bucket: bucket.waiting.clear()
race = steps.run("zero 1")["error"]
steps.timeline.crossing.clear()
Offload._wait = lambda offload, layer: None
offloaded = steps.run("offloaded")["error"]
steps.timeline.crossing.clear()
whole = Group.fuse
Group.fuse = lambda group, rows, row_bytes: whole(group, rows, row_bytes // 2)
fused = steps.run("tp 8, asynchronous")["error"]
print(json.dumps({"waits": waits, "race": race, "offloaded": offloaded, "fused": fused}))
"""
"""Runs cases, one that is broken in two ways, one whose copies nothing waits for, and one whose
ranks would exchange a larger workspace within a pass."""


class Steps(dict[str, dict[str, Any]]):
    """Figures of cases; those of one kind are run together, when the first is asked for."""

    broken: dict[str, Any]

    def __missing__(self, name: str) -> dict[str, Any]:
        names = [one for one in cases.CASES if (one in QUICK) == (name in QUICK)]
        argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, *names]
        once = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(argv, capture_output=True, text=True, timeout=1_000, env=once)
        assert done.returncode == 0, done.stderr[-3000:]
        *lines, self.broken = map(json.loads, done.stdout.splitlines())
        self.update({found["name"]: found for found in lines})
        return self[name]


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps()


def marked(names: Any) -> list[Any]:
    return [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.heavy) for name in names
    ]


@each(marked(cases.CASES))
def test_a_step_runs_on_a_gpu_and_the_host_waits_for_it_once(steps: Steps, name: str) -> None:
    found = steps[name]
    assert "error" not in found, f"{found['error']}\n{found['trace']}"
    assert found["kernels"]["_fused_adamw_"] >= 1
    waits = found["waits"]
    if cases.CASES[name][1].get("time_communication"):
        assert waits.pop("stream.synchronize") > 0
    assert waits == {"tolist": 1}


@each(cases.LAYERS)
def test_a_layer_asks_for_the_kernels_and_bytes_of_the_table(steps: Steps, name: str) -> None:
    told = {row[0]: row[1:] for row in tables.rows("layers")}
    kind, *found = cases.row(steps[name])
    assert [*map(str, found)] == told[str(kind)], (
        f"{steps[name]['layer']['kernels']}; if that is meant: "
        "python -m benchmarks.pretended_gpu.steps --table"
    )


@pytest.fixture(scope="module")
def compiled() -> list[list[str]]:
    """Rows of the compiler's table, of all layers."""
    pytest.importorskip("triton")
    argv = [sys.executable, "-W", "ignore", "-m", "benchmarks.pretended_gpu.inductor"]
    once = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1_000, env=once)
    assert done.returncode == 0, done.stderr[-3000:]
    layers = map(json.loads, done.stdout.splitlines())
    return [[*map(str, row)] for layer in layers for row in layer["rows"]]


@pytest.mark.heavy
def test_a_compiled_layer_takes_the_kernels_bytes_and_registers_of_the_table_and_spills_none(
    compiled: list[list[str]],
) -> None:
    told = tables.rows("compiled")
    assert compiled == told, "if meant: python -m benchmarks.pretended_gpu.inductor --table"
    assert len(told) == 9 and {row[-2] for row in told} == {"0"}


def test_every_setting_is_in_a_case_or_asks_nothing_of_the_device() -> None:
    fields = {*Choices.model_fields, *Settings.model_fields}
    tried = {setting for _, settings in cases.CASES.values() for setting in settings}
    assert fields - tried == ON_THE_HOST | IN_GRAPHS | OF_EXPERTS


def test_weights_used_before_they_are_there_and_a_number_read_by_the_host_are_found(
    steps: Steps,
) -> None:
    assert steps["zero 1"]["waits"] == {"tolist": 1}
    race = steps.broken["race"]
    assert "memory that all_gather on" in race and "does not wait for it" in race
    assert steps.broken["waits"] == {"item": 1, "tolist": 1}
    assert "is freed while copy_ on stream" in steps.broken["offloaded"]
    assert "bytes of a workspace of" in steps.broken["fused"]
