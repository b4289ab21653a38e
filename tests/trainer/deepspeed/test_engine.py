"""DeepSpeed trains what our engine trains."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.deepspeed_cases import GPT, GRAD_CLIP, LLAMA, RANKS, STEPS, job

WORKER = Path(__file__).parents[2] / "support/deepspeed_worker.py"


NO_CLIP = {"lr": 1e-3, "grad_clip": 0}


OURS = [
    job("ours", "meshtune"),
    job("ours bf16", "meshtune", precision="bf16", zero_stage=1),
    job("ours no clip", "meshtune", optimizer=NO_CLIP),
    job("ours llama", "meshtune", LLAMA),
    job("ours pp", "meshtune", pp=2, zero_stage=1),
    job("ours llama pp", "meshtune", LLAMA, pp=2, zero_stage=1),
]


EXACT = {  # in float32: what it must equal
    "zero 0": "ours",
    "zero 0 no clip": "ours no clip",
    "llama zero 3 hpz recompute": "ours llama",
    "zero 1 pp": "ours pp",
    "llama zero 1 pp recompute": "ours llama pp",
}


FLOAT32 = [
    job("zero 0"),
    job("zero 0 no clip", optimizer=NO_CLIP),
    job(
        "llama zero 3 hpz recompute", model=LLAMA, zero_stage=3, secondary_shard=2, recompute="full"
    ),
    job("zero 1 pp", pp=2, zero_stage=1),
    job("llama zero 1 pp recompute", model=LLAMA, pp=2, zero_stage=1, recompute="full"),
]


BFLOAT16 = [
    *(job(f"bf16 zero {stage}", precision="bf16", zero_stage=stage) for stage in range(4)),
    job("bf16 hpz", precision="bf16", placement="hpz", ranks_per_node=2),
]


HIDDEN = {**job("hidden"), "ranks": 1, "hide": True}


MISSING = importlib.util.find_spec("deepspeed") is None
installed = pytest.mark.skipif(
    MISSING, reason="DeepSpeed is not installed: pip install 'meshtune[deepspeed]'"
)


def run(jobs: list[Any], extensions: Path) -> dict[str, Any]:
    unset = ("MASTER_ADDR", "MASTER_PORT")  # it must make do with the process group that is there
    environ = {key: value for key, value in os.environ.items() if key not in unset}
    done = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=280,
        env={**environ, "TORCH_EXTENSIONS_DIR": str(extensions), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {answer["id"]: answer for answer in answers}


@pytest.fixture(scope="module")
def extensions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where torch would put what it compiles."""
    return tmp_path_factory.mktemp("extensions")


@pytest.fixture(scope="module")
def answers(extensions: Path) -> dict[str, dict[str, Any]]:
    return run([HIDDEN] if MISSING else [*OURS, *FLOAT32, *BFLOAT16, HIDDEN], extensions)


@pytest.fixture(scope="module")
def results(answers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    refused = {name: answer for name, answer in answers.items() if "result" not in answer}
    assert [*refused] == ["hidden"]
    return {name: answer["result"] for name, answer in answers.items() if "result" in answer}


@installed
@pytest.mark.parametrize("case", EXACT)
def test_in_float32_deepspeed_agrees_to_rounding(results: dict[str, Any], case: str) -> None:
    found, expected = results[case], results[EXACT[case]]
    assert len(found["losses"]) == STEPS
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert found["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-5)
    assert found["dtype"] == "torch.float32"  # on any CPU, with kernels for fp16 or without
    assert found["skipped_steps"] == 0
    assert found["ranks_agree"]


@installed
@pytest.mark.parametrize("case", [job["id"] for job in BFLOAT16])
def test_in_bfloat16_deepspeed_is_nearer_to_us_than_float32_is(
    results: dict[str, Any], case: str
) -> None:
    for figure in ("losses", "grad_norms"):
        found, ours, exact = (results[name][figure] for name in (case, "ours bf16", "ours"))
        rounding = max(abs(a - b) for a, b in zip(ours, exact, strict=True))
        assert rounding > 0
        assert found == pytest.approx(ours, rel=0, abs=rounding)
    assert results[case]["dtype"] == "torch.bfloat16"
    assert results[case]["ranks_agree"]


@installed
def test_the_cases_are_clipped_at_every_step(results: dict[str, Any]) -> None:
    assert min(results["zero 0"]["grad_norms"]) > GRAD_CLIP
    clipped, free = (results[name]["losses"] for name in ("zero 0", "zero 0 no clip"))
    assert free != pytest.approx(clipped, rel=1e-5)


@installed
def test_optimizer_states_are_split_but_in_zero_0(results: dict[str, Any]) -> None:
    for stage in range(4):
        found = results[f"bf16 zero {stage}"]
        share = found["parameters"] // (1 if stage == 0 else RANKS)
        padding = RANKS * 8
        assert share <= found["moments"] <= share + padding


@installed
def test_zero_3_splits_weights_and_hpz_keeps_half_of_them(results: dict[str, Any]) -> None:
    for case, copies in (("bf16 zero 3", 0), ("bf16 hpz", 2), ("llama zero 3 hpz recompute", 2)):
        found = results[case]
        assert found["split"] > 0.9 * found["parameters"]  # all but norms and biases
        assert found["own"] == found["split"] // RANKS
        assert found["secondary"] == (found["split"] // copies if copies else 0)
    assert results["bf16 zero 2"]["split"] == 0


@installed
def test_recomputation_runs_every_block_twice(results: dict[str, Any]) -> None:
    once = GPT["num_layers"] * 2 * STEPS  # micro-batches
    assert results["zero 0"]["block_calls"] == once
    assert results["llama zero 3 hpz recompute"]["block_calls"] == 2 * once
    assert results["zero 1 pp"]["block_calls"] == once // 2  # of two stages
    assert results["llama zero 1 pp recompute"]["block_calls"] == 2 * once // 2


@installed
def test_deepspeed_is_quiet_and_compiles_nothing(results: dict[str, Any], extensions: Path) -> None:
    assert {found["said"] for found in results.values()} == {""}
    assert list(extensions.iterdir()) == []


@installed
def test_progress_is_told_as_by_our_engine(results: dict[str, Any]) -> None:
    found = results["zero 0"]
    assert len(found["progress"]) == STEPS == len(found["step_times_s"])
    assert found["progress"][-1].startswith(f"step {STEPS}/{STEPS} loss")
    assert found.keys() >= results["ours"].keys()


def test_a_missing_deepspeed_is_named_with_its_remedy(answers: dict[str, dict[str, Any]]) -> None:
    assert "pip install 'meshtune[deepspeed]'" in answers["hidden"]["refused"]
