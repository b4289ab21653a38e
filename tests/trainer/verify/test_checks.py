"""The checks of ``meshtune verify-gpu``, on a pretended GPU and, with numbers, on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.verify import checks, plan
from trainer.zero.hooks import GatherWeights

ALL = list(plan.planned(gpus=2))
HERE = [c for c in ALL if c.kind not in ("search", "layouts") and "compile" not in c.settings]
PRETENDED = [c for c in HERE if c.kind != "out_of_memory" and not c.settings.get("plain")]
QUICK = {
    "device", "attention", "quantization", "losses, selective", "sharded, zero++", "hpz race",
}  # fmt: skip
ON_CPU = {*QUICK, "out of memory", "1B, plain torch, compiled"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Or small products wait for each other's threads, which spin."""
    before = checks.torch.get_num_threads()
    checks.torch.set_num_threads(1)
    yield
    checks.torch.set_num_threads(before)


def marked(found: list[plan.Check], quick: set[str]) -> list[object]:
    heavy = pytest.mark.heavy
    return [
        pytest.param(check, id=check.name, marks=() if check.name in quick else heavy)
        for check in found
    ]


PROGRAM = """
import sys
from benchmarks.pretended_gpu import verify
from trainer.zero.secondary import SecondaryCopy
verify.prepare()
verify.tell(sys.argv[1:])
own, verify.checks._Delayed.run = verify.checks._Delayed.run, lambda writing, work: work()
verify.tell(["hpz race"])
verify.checks._Delayed.run = own
SecondaryCopy.gather = lambda copy, whole: copy.reading.run(lambda: copy._read(whole))
verify.tell(["hpz race"])
"""
"""Runs checks, one whose writes are not late, and one of a copy that readers do not wait for."""


def pretended(*names: str) -> tuple[dict[str, dict[str, str]], dict[str, str], dict[str, str]]:
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, *names]
    once = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1_000, env=once)
    assert done.returncode == 0, done.stderr[-3000:]
    *found, hidden, broken = map(json.loads, done.stdout.splitlines())
    return {one["check"]: one for one in found}, broken, hidden


needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@needs_compiler
def test_checks_of_every_kind_run_on_a_pretended_gpu() -> None:
    found, broken, hidden = pretended(*QUICK)
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys(QUICK, "ok"), found
    assert broken["status"] == "wrong" and "does not wait for it" in broken["message"], broken
    assert hidden["status"] == "wrong" and "races are hidden" in hidden["message"], hidden


@needs_compiler
@pytest.mark.heavy
def test_every_check_runs_on_a_pretended_gpu() -> None:
    found, *_ = pretended()
    names = [check.name for check in PRETENDED]
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys(names, "ok"), found


@pytest.mark.parametrize("check", marked(HERE, ON_CPU))
def test_a_check_passes_on_the_cpu(check: plan.Check) -> None:
    found = checks.run(check.kind, check.settings, "cpu")
    assert found["status"] == "ok", found


def test_a_kernel_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own = checks.attend

    def careless(*args: object, **kwargs: object) -> object:
        found = own(*args, **kwargs)
        return found if found.dtype == checks.torch.float64 else found * 1.1

    monkeypatch.setattr(checks, "attend", careless)
    found = checks.run("attention", {}, "cpu")
    assert found["status"] == "wrong"
    assert "attention (float32) differs from float64's by" in found["message"]


def test_a_copy_of_the_weights_before_the_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatherWeights, "weights_changed", lambda self: None)
    found = checks.run("race", {"placement": "hpz", "steps": 2}, "cpu")
    assert found["status"] == "wrong"
    assert "bytes gathered from copies are not the primary's" in found["message"]


def test_a_race_check_that_reads_no_copy_fails() -> None:
    found = checks.run("race", {"zero_stage": 3, "steps": 2}, "cpu")
    assert found["status"] == "wrong"
    assert "no weights were gathered from copies" in found["message"]


def test_losses_that_differ_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LOSS_TOLERANCE", {"fp16": 0.0})
    found = checks.run("losses", {"precision": "fp16"}, "cpu")
    assert found["status"] == "wrong"
    assert "are not those of a CPU in float32" in found["message"]


def test_a_gpu_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if checks.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    found = checks.run("facts", {}, "cuda")
    assert found["status"] == "refused"
    assert "install the build for this cluster's GPUs" in found["message"]


def test_parts_end_within_nine_minutes_if_no_check_reaches_its_limit_twice_over() -> None:
    for part in (1, 2, 3, 4):
        mine = [check.limit_s for check in ALL if check.part == part]
        # A limit is what a check may take when something is wrong, four times what it should.
        assert mine and sum(mine) / 4 < 540
        assert max(mine) < 540


@pytest.mark.parametrize(("gpus", "several"), [(1, 0), (2, 3), (3, 1), (8, 3)])
def test_layouts_are_planned_where_their_degrees_divide_the_gpus(gpus: int, several: int) -> None:
    """Three GPUs have layouts, but none with tp 2."""
    found = [check for check in plan.planned(gpus) if check.kind == "layouts"]
    assert [check.gpus for check in found] == [gpus] * several
    assert all(gpus % check.settings.get("tp", 1) == 0 for check in found)


def test_every_check_has_a_remedy_and_a_name_of_its_own() -> None:
    names = [check.name for check in ALL]
    assert len(set(names)) == len(names)
    assert all(check.remedy for check in ALL)
    assert [check.part for check in ALL] == sorted(check.part for check in ALL)


def test_the_tokens_are_the_same_wherever_they_are_drawn(tmp_path: Path) -> None:
    config = checks.TrainConfig.parse({"model": checks.TINY, "data": ""})
    first, second = (
        checks.Tokens(config).samples(3, 2, seq_length=8, seed=seed)[0] for seed in (1, 2)
    )
    assert checks.torch.equal(first, second)
