"""DeepSpeed trains what our engine trains, and what it cannot is refused with a reason."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.config import TrainConfig
from trainer.deepspeed.rules import unsupported

WORKER = Path(__file__).with_name("deepspeed_worker.py")
RANKS = 4
STEPS = 4
GRAD_CLIP = 0.5
GPT: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "vocab_size": 64,
    "seq_length": 16,
}
LLAMA: dict[str, Any] = {
    **GPT,
    "num_kv_heads": 2,
    "ffn_hidden_size": 48,
    "norm": "rmsnorm",
    "positions": "rotary",
    "activation": "swiglu",
    "linear_bias": False,
    "tied_embeddings": False,
}


def job(name: str, engine: str = "deepspeed", model: dict[str, Any] = GPT, **values: Any) -> Any:
    config = {
        "model": model,
        "data": "unused",
        "precision": "fp32",
        "mbs": 2,
        "gas": 2,
        "warmup_steps": 0,
        "measured_steps": STEPS,
        "device": "cpu",
        "optimizer": {"lr": 1e-3, "grad_clip": GRAD_CLIP},
        "engine": engine,
    }
    return {"id": name, "ranks": RANKS, "config": config | values}


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
        "llama zero 3 hpz recompute",
        model=LLAMA,
        zero_stage=3,
        secondary_shard=2,
        recompute="full",
    ),
    job("zero 1 pp", pp=2, zero_stage=1),
    job("llama zero 1 pp recompute", model=LLAMA, pp=2, zero_stage=1, recompute="full"),
]
BFLOAT16 = [
    *(job(f"bf16 zero {stage}", precision="bf16", zero_stage=stage) for stage in range(4)),
    job("bf16 hpz", precision="bf16", placement="hpz", ranks_per_node=2),
]
HIDDEN = {**job("hidden"), "ranks": 1, "hide": True}

installed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed: pip install 'meshtune[deepspeed]'",
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
def results(extensions: Path) -> dict[str, dict[str, Any]]:
    answers = run([*OURS, *FLOAT32, *BFLOAT16], extensions)
    refused = {name: answer for name, answer in answers.items() if "result" not in answer}
    assert not refused
    return {name: answer["result"] for name, answer in answers.items()}


@installed
@pytest.mark.parametrize("case", EXACT)
def test_in_float32_deepspeed_agrees_to_rounding(results: dict[str, Any], case: str) -> None:
    found, expected = results[case], results[EXACT[case]]
    assert len(found["losses"]) == STEPS
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6)
    assert found["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-5)
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


def test_a_missing_deepspeed_is_named_with_its_remedy(tmp_path: Path) -> None:
    assert "pip install 'meshtune[deepspeed]'" in run([HIDDEN], tmp_path)["hidden"]["refused"]


def ask(ranks: int = 8, device: Any = "cpu", node: int | None = None, **values: Any) -> str | None:
    return unsupported(TrainConfig.parse(job("", **values)["config"]), ranks, device, node)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tp": 2}, "tp 2: .*set tp: 1"),
        ({"sequence_parallel": True}, "sequence_parallel: .*set sequence_parallel: false"),
        ({"pp": 2, "vpp": 2, "zero_stage": 1}, "vpp 2: .*set vpp: 1"),
        ({"pp": 2, "zero_stage": 2}, "pp 2 with ZeRO-2: .*set zero_stage: 1"),
        ({"pp": 2, "zero_stage": 3}, "pp 2 with ZeRO-3: .*set zero_stage: 1"),
        ({"pp": 2}, "pp 2 with ZeRO-0: .*set zero_stage: 1"),
        ({"zero_stage": 3, "weight_shard": 4}, "weight_shard 4, .*all 8 replicas"),
        ({"zero_stage": 2, "gradient_shard": 4}, "gradient_shard 4, .*all 8 replicas"),
        ({"optimizer_shard": 2}, "optimizer_shard 2.*all 8 replicas"),
        ({"placement": "mics", "ranks_per_node": 4}, "MiCS left it"),
        ({"placement": "zero_topo", "ranks_per_node": 4}, "weight_shard 4"),
        ({"zero_stage": 3, "secondary_shard": 1}, "secondary_shard 1: .*zero_stage: 2"),
        (
            {"zero_stage": 3, "secondary_shard": 2, "quantize_secondary": True},
            "set quantize_secondary: false",
        ),
        ({"zero_stage": 3, "quantize_weights": True}, "quantize_weights on CPU"),
        ({"zero_stage": 3, "quantize_gradients": True}, "quantize_gradients on CPU"),
        ({"placement": "zero++", "ranks_per_node": 4}, "quantize_weights on CPU"),
        ({"recompute": "selective"}, "recompute selective: .*set recompute: full"),
        ({"precision": "fp16", "zero_stage": 1}, "fp16 on CPU: .*set precision: bf16"),
        ({"time_communication": True}, "set time_communication: false"),
    ],
)
def test_what_deepspeed_cannot_do_has_a_reason_and_a_remedy(
    values: dict[str, Any], reason: str
) -> None:
    found = ask(**values)
    assert found is not None
    assert found.startswith("engine deepspeed: ")
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found)


@pytest.mark.parametrize("stage", range(4))
def test_every_zero_stage_is_supported_and_recomputes_in_full(stage: int) -> None:
    assert ask(zero_stage=stage, precision="bf16", recompute="full") is None


def test_a_pipeline_is_supported_with_zero_1_and_with_one_replica() -> None:
    assert ask(pp=2, zero_stage=1) is None
    assert ask(ranks=2, pp=2, zero_stage=3) is None


def test_on_a_gpu_fp16_and_quantization_are_supported_where_they_work() -> None:
    assert ask(device="cuda", precision="fp16", zero_stage=2) is None
    assert "fp16 with ZeRO-0" in str(ask(device="cuda", precision="fp16"))
    zero_plus_plus = {"device": "cuda", "placement": "zero++"}
    assert ask(**zero_plus_plus, node=4) is None
    assert "quantize_gradients on one node" in str(ask(**zero_plus_plus, node=8))
    assert ask(**zero_plus_plus, node=8, quantize_gradients=False) is None
    partly = ask(device="cuda", zero_stage=2, quantize_weights=True)
    assert "quantize_weights: only its ZeRO-3 quantizes" in str(partly)


def test_with_one_replica_nothing_is_split_and_nothing_is_refused() -> None:
    for values in ({"zero_stage": 3}, {"placement": "mics"}, {"placement": "zero++"}):
        assert ask(ranks=1, precision="bf16", **values) is None
