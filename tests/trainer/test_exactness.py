"""Every parallel layout trains the same model: compared with a plain loop in one process."""

from __future__ import annotations

import math
from typing import Any

import pytest

from support.long_sweep import LongSweep
from support.placement_cases import EPS
from trainer.config import TrainConfig
from trainer.zero.traffic import expected_traffic

STEPS = 10
FEW_STEPS = 4
"""Of the layouts that `make test` runs."""
GLOBAL_BATCH = 16
GRAD_CLIP = 0.5
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "num_layers": 8,
        "hidden_size": 32,
        "num_heads": 8,
        "vocab_size": 64,
        "seq_length": 16,
    },
    "llama": {
        "num_layers": 8,
        "hidden_size": 64,
        "num_heads": 16,
        "num_kv_heads": 8,
        "ffn_hidden_size": 96,
        "vocab_size": 64,
        "seq_length": 16,
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "swiglu",
        "linear_bias": False,
        "tied_embeddings": False,
    },
}
LAYOUTS = [
    (tp, pp, 8 // tp // pp) for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) if tp * pp in (1, 2, 4, 8)
]


def job(name: str, model: str, ranks: int, options: dict[str, Any] | None = None, **values: Any):
    config = {
        "model": MODELS[model],
        "data": "unused",
        "precision": "fp32",
        "warmup_steps": 0,
        "device": "cpu",
        "optimizer": {"lr": 1e-3, "grad_clip": GRAD_CLIP, "eps": EPS},
        **values,
    }
    return {
        "id": f"{model} {name}",
        "ranks": ranks,
        "config": config,
        "options": {"global_batch": GLOBAL_BATCH, **(options or {})},
    }


def layout(model: str, tp: int, pp: int, dp: int, zero_stage: int, **values: Any) -> dict[str, Any]:
    """A case with as many micro-batches as the pipeline has stages (at least 2)."""
    gas = values.get("gas", min(max(pp, 2), GLOBAL_BATCH // dp))
    shape = {"tp": tp, "pp": pp, "zero_stage": zero_stage, "gas": gas, **values}
    ranks = tp * pp * dp * values.get("cp", 1)
    name = " ".join(f"{key}={value}" for key, value in {**shape, "ranks": ranks}.items())
    return job(name, model, ranks, mbs=GLOBAL_BATCH // dp // gas, **shape)


ALL_STEPS: dict[str, Any] = {"measured_steps": STEPS}
REFERENCES = [job("reference", model, 0, **ALL_STEPS) for model in MODELS]
# Each two features that could disturb each other are in one of these, on as few ranks as they need.
QUICK = [
    job("one rank", "gpt", 1, mbs=8, gas=2),
    job("one rank", "llama", 1, mbs=8, gas=2),
    layout("gpt", 2, 1, 2, 2, sequence_parallel=True, recompute="selective", recompute_every=2),
    layout("llama", 2, 2, 2, 2, vpp=2),
    layout("gpt", 1, 4, 1, 0, first_stage_layers=1, last_stage_layers=3),
    layout(
        "llama", 1, 2, 2, 3, vpp=2, first_stage_layers=6, recompute="full",
        pipeline_schedule="LoopedBFS",
    ),
    layout("gpt", 2, 2, 1, 0, vpp=2, pipeline_schedule="InterleavedZeroBubble"),
    layout("llama", 1, 2, 2, 1, recompute="full", pipeline_schedule="InterleavedZeroBubble"),
    layout("llama", 2, 2, 1, 0, vpp=2, gas=4, pipeline_schedule="DualPipeV"),
    layout("gpt", 1, 1, 2, 1, cp=2, recompute="selective"),
    layout("llama", 2, 1, 1, 3, cp=2, recompute="full", sequence_parallel=True),
]  # fmt: skip


def every_schedule() -> list[dict[str, Any]]:
    """What the sweeps over degrees leave out: schedules and uneven stages, on all 8 ranks."""
    return [
        layout("gpt", 1, 4, 2, 1, first_stage_layers=1, last_stage_layers=3),
        layout("llama", 1, 2, 4, 3, vpp=2, first_stage_layers=6, recompute="full"),
        layout("gpt", 2, 1, 4, 2, sequence_parallel=True, recompute="selective", recompute_every=2),
        layout("llama", 1, 2, 4, 3, vpp=2, pipeline_schedule="LoopedBFS", recompute="full"),
        layout("gpt", 1, 4, 2, 1, vpp=2, gas=2, pipeline_schedule="LoopedBFS"),
        layout("gpt", 2, 2, 2, 1, vpp=2, pipeline_schedule="InterleavedZeroBubble"),
        layout("gpt", 1, 4, 2, 1, vpp=2, gas=2, pipeline_schedule="ZBVZeroBubble"),
        layout("llama", 1, 4, 2, 0, vpp=2, first_stage_layers=2, pipeline_schedule="ZBVZeroBubble"),
        layout("gpt", 1, 4, 2, 1, vpp=2, gas=8, pipeline_schedule="DualPipeV"),
        layout("gpt", 2, 2, 1, 1, vpp=2, cp=2, gas=4, pipeline_schedule="DualPipeV"),
        layout(
            "llama", 1, 4, 2, 0, recompute="full", pipeline_schedule="InterleavedZeroBubble"
        ),
    ]  # fmt: skip


def every_layout() -> list[dict[str, Any]]:
    cases = []
    for model in MODELS:
        for tp, pp, dp in LAYOUTS:
            for zero_stage in range(4):
                recompute = ("none", "selective", "full")[(tp + pp + zero_stage) % 3]
                plain = (model, tp, pp, dp, zero_stage)
                cases.append(layout(*plain, recompute=recompute))
                if tp > 1:
                    cases.append(layout(*plain, sequence_parallel=True, recompute=recompute))
                if pp in (2, 4):
                    cases.append(layout(*plain, vpp=2, sequence_parallel=tp > 1))
    return cases


def every_context() -> list[dict[str, Any]]:
    """Each number of ranks on a sequence, beside each factorization of the others."""
    cases = []
    for model in MODELS:
        for cp in (2, 4, 8):
            for tp, pp, dp in LAYOUTS:
                if dp % cp:
                    continue
                for zero_stage in range(4):
                    recompute = ("none", "selective", "full")[(tp + pp + zero_stage) % 3]
                    more = {"cp": cp, "recompute": recompute}
                    if tp > 1 and zero_stage % 2:
                        more["sequence_parallel"] = True
                    if pp in (2, 4) and zero_stage > 1:
                        more["vpp"] = 2
                    cases.append(layout(model, tp, pp, dp // cp, zero_stage, **more))
    return cases


EVERY = [*every_layout(), *every_context(), *every_schedule()]
COMPILED = [
    job(
        "compiled", "llama", 2, tp=2, mbs=8, gas=2, compile=True, sequence_parallel=True,
        recompute="selective",
    ),
    job("compiled zero 3", "gpt", 2, zero_stage=3, mbs=4, gas=2, compile=True, recompute="full"),
]  # fmt: skip
QUICK_SIXTEEN = [("bf16", 1), ("bf16", 3), ("fp16", 0), ("fp16", 2)]
OTHER_SIXTEEN = [("bf16", 0), ("bf16", 2), ("fp16", 1), ("fp16", 3)]


def sixteen_bits(precision: str, zero: int) -> dict[str, Any]:
    return job(
        f"{precision} zero {zero}", "gpt", 2, precision=precision, mbs=4, gas=2, zero_stage=zero
    )


FP8: dict[str, Any] = {"precision": "fp8", "gas": 2, **ALL_STEPS}
EIGHT_BITS = [
    job("fp8 zero 3", "llama", 2, mbs=4, zero_stage=3, recompute="full", **FP8),
    job("fp8 sp", "llama", 2, mbs=8, tp=2, sequence_parallel=True, recompute="selective", **FP8),
]
MORE_EIGHT_BITS = [job("fp8 tp", "llama", 2, mbs=8, tp=2, **FP8)]
SPECIAL = [
    *COMPILED,
    # Fewer micro-batches than stages, or no multiple of them; several buckets; 16 bits.
    job("gas below pp", "gpt", 4, pp=4, mbs=8, gas=2),
    job(
        "gas by no pp",
        "gpt",
        3,
        pp=3,
        vpp=2,
        first_stage_layers=4,
        mbs=4,
        gas=4,
        pipeline_schedule="LoopedBFS",
    ),
    job("buckets", "gpt", 4, ddp_bucket_size=5000, zero_stage=1, mbs=2, gas=2),
    job("buckets pp", "llama", 4, ddp_bucket_size=5000, pp=2, vpp=2, mbs=4, gas=2),
    *(sixteen_bits(precision, zero) for precision, zero in QUICK_SIXTEEN),
    *EIGHT_BITS,
    job(
        "bf16 mesh", "llama", 4, precision="bf16", tp=2, pp=2, mbs=4, gas=4, sequence_parallel=True
    ),
    job(
        "overflow",
        "gpt",
        4,
        {"initial_scale": 2.0**22},
        precision="fp16",
        pp=2,
        mbs=4,
        gas=2,
        **ALL_STEPS,
    ),
    job("no clip", "gpt", 4, tp=2, mbs=4, gas=2, optimizer={"lr": 1e-3, "grad_clip": 0}),
    job("buffers", "gpt", 4, {"buffers": True}, pp=4, mbs=1, gas=16),
    job("buffers vpp", "gpt", 4, {"buffers": True}, pp=4, vpp=2, mbs=1, gas=16),
]
MORE_SPECIAL = [
    *MORE_EIGHT_BITS,
    *(sixteen_bits(precision, zero) for precision, zero in OTHER_SIXTEEN),
]
GOLDFISH: dict[str, Any] = {"goldfish": {"k": 2, "h": 3}}
WITHOUT_SOME = [
    job("goldfish mesh", "gpt", 8, cp=2, pp=2, mbs=4, gas=2, zero_stage=1, **GOLDFISH),
    job("goldfish zero3", "gpt", 2, mbs=4, gas=2, zero_stage=3, **GOLDFISH),
]
GOLDFISH_REFERENCE = job("goldfish reference", "gpt", 0, **GOLDFISH)
SCHEDULED: dict[str, Any] = {
    "optimizer": {"lr": 1e-2, "grad_clip": GRAD_CLIP, "eps": EPS},
    "lr_scheduler": {"warmup_steps": 2, "total_steps": 4, "decay_type": "cosine"},
}
SCHEDULES = [
    job("schedule mesh", "gpt", 8, tp=2, pp=2, mbs=4, gas=2, **SCHEDULED),
    job("schedule zero3", "gpt", 2, mbs=4, gas=2, zero_stage=3, **SCHEDULED),
]
SCHEDULE_REFERENCE = job("schedule reference", "gpt", 0, **SCHEDULED)
DOCUMENTS: dict[str, Any] = {"documents": {}}
PACKED = [
    job(
        "documents vpp", "llama", 4, tp=2, pp=2, vpp=2, mbs=4, gas=4, recompute="full", **DOCUMENTS
    ),
    job("documents zero3", "llama", 2, mbs=4, gas=2, zero_stage=3, **DOCUMENTS),
    job("documents grid", "gpt", 4, gy=2, gz=2, mbs=8, gas=2, **DOCUMENTS),
]  # fmt: skip
MORE_PACKED = [
    job("documents pp", "gpt", 4, pp=2, mbs=4, gas=2, zero_stage=2, **DOCUMENTS),
    job(
        "documents tp", "gpt", 4, tp=2, mbs=4, gas=2, sequence_parallel=True,
        recompute="selective", **DOCUMENTS,
    ),
]  # fmt: skip
PACKED_REFERENCES = [job("documents reference", model, 0, **DOCUMENTS) for model in MODELS]
VALIDATED: dict[str, Any] = {"validation": {"data": "unused", "freq": 2, "steps": 2}}
VALIDATIONS = [
    job("validated zero3", "gpt", 4, cp=2, mbs=4, gas=2, zero_stage=3, **VALIDATED),
    job("validated hpz", "gpt", 4, mbs=2, gas=2, placement="hpz", ranks_per_node=2, **VALIDATED),
    job(
        "validated vpp", "gpt", 4, tp=2, pp=2, vpp=2, mbs=4, gas=4, sequence_parallel=True,
        **GOLDFISH, **VALIDATED,
    ),
    job(
        "validated zbv", "gpt", 4, pp=2, vpp=2, mbs=4, gas=2, zero_stage=1, recompute="full",
        pipeline_schedule="ZBVZeroBubble", **VALIDATED,
    ),
    job("validated grid", "gpt", 4, gx=2, gz=2, mbs=8, gas=2, **VALIDATED),
]  # fmt: skip
MORE_VALIDATIONS = [
    job("validated zero2 pp", "gpt", 4, pp=2, mbs=4, gas=2, zero_stage=2, **VALIDATED)
]
VALIDATION_REFERENCES = [
    job("validated reference", "gpt", 0, **VALIDATED),
    job("validated goldfish", "gpt", 0, **GOLDFISH, **VALIDATED),
]
NO_CLIP = {
    **job("no clip reference", "gpt", 0),
    "config": SPECIAL[-3]["config"],
}
FEW_REFERENCES = [
    NO_CLIP,
    GOLDFISH_REFERENCE,
    SCHEDULE_REFERENCE,
    *VALIDATION_REFERENCES,
    *PACKED_REFERENCES,
]


def equals(
    found: dict[str, Any], expected: dict[str, Any], tolerance: float, steps: int = STEPS
) -> None:
    losses, norms = expected["losses"][:steps], expected["grad_norms"][:steps]
    assert found["losses"] == pytest.approx(losses, rel=tolerance)
    assert found["grad_norms"] == pytest.approx(norms, rel=10 * tolerance)
    assert found["skipped_steps"] == 0
    assert found["ranks_agree"]


def quick_and_heavy(quick: list[dict[str, Any]], more: list[dict[str, Any]]) -> list[Any]:
    """Parameters of a test: jobs by their names."""
    return [
        *(pytest.param(case, id=case["id"]) for case in quick),
        *(pytest.param(case, id=case["id"], marks=pytest.mark.heavy) for case in more),
    ]


def in_few_steps(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**job, "config": {"measured_steps": FEW_STEPS} | job["config"]} for job in jobs]


@pytest.fixture(scope="module")
def results(run_ranks) -> dict[str, Any]:
    """Of all but the long sweep, by the job's name."""
    references = [*REFERENCES, *in_few_steps(FEW_REFERENCES)]
    quick = [*QUICK, *WITHOUT_SOME, *SCHEDULES, *VALIDATIONS, *PACKED, *SPECIAL]
    more = [*MORE_PACKED, *MORE_VALIDATIONS, *MORE_SPECIAL]
    groups = (in_few_steps(quick), in_few_steps(more))
    return LongSweep(run_ranks, references, *groups, timeout_s=580)


@pytest.fixture(scope="module")
def every(run_ranks) -> dict[str, Any]:
    return LongSweep(
        run_ranks, REFERENCES, [{**job, "config": job["config"] | ALL_STEPS} for job in EVERY]
    )


@pytest.mark.parametrize("case", [job["id"] for job in QUICK])
def test_a_layout_trains_like_one_process(results: dict[str, Any], case: str) -> None:
    equals(results[case], results[f"{case.split()[0]} reference"], 1e-5, FEW_STEPS)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", [job["id"] for job in EVERY])
def test_every_layout_trains_like_one_process(every: dict[str, Any], case: str) -> None:
    equals(every[case], every[f"{case.split()[0]} reference"], 1e-5)


def test_the_reference_learns_and_is_clipped_at_every_step(results: dict[str, Any]) -> None:
    for model in MODELS:
        reference = results[f"{model} reference"]
        assert min(reference["grad_norms"]) > GRAD_CLIP
        assert reference["losses"][-1] < reference["losses"][0] - 0.1


def test_progress_is_told_after_each_step(results: dict[str, Any]) -> None:
    result = results["gpt one rank"]
    assert len(result["progress"]) == FEW_STEPS == len(result["step_times_s"])
    assert result["progress"][-1].startswith(f"step {FEW_STEPS}/{FEW_STEPS} loss")
    assert result["memory"]["allocated"] > 0
    assert result["device"]["type"] == "cpu"


@pytest.mark.parametrize(
    "case", ["gpt gas below pp", "gpt gas by no pp", "gpt buckets", "llama buckets pp"]
)
def test_a_rare_schedule_trains_like_one_process(results: dict[str, Any], case: str) -> None:
    equals(results[case], results[f"{case.split()[0]} reference"], 1e-5, FEW_STEPS)


@pytest.mark.parametrize("case", [job["id"] for job in COMPILED])
def test_compiled_layers_train_like_one_process_each_in_one_graph(
    results: dict[str, Any], case: str
) -> None:
    """A layer that falls into several graphs is an error; all layers have the same one."""
    equals(results[case], results[f"{case.split()[0]} reference"], 1e-5, FEW_STEPS)
    assert results[case]["graphs"] == 1


def test_without_clipping_a_layout_still_trains_like_one_process(results: dict[str, Any]) -> None:
    equals(results["gpt no clip"], results["gpt no clip reference"], 1e-5, FEW_STEPS)
    clipped = results["gpt reference"]["losses"][:FEW_STEPS]
    assert results["gpt no clip"]["losses"] != pytest.approx(clipped, rel=1e-5)


@pytest.mark.parametrize("case", [job["id"] for job in WITHOUT_SOME])
def test_the_goldfish_loss_is_the_same_in_every_layout(results: dict[str, Any], case: str) -> None:
    """The mean over all tokens that are left in the global batch, however many each rank has."""
    equals(results[case], results["gpt goldfish reference"], 1e-5, FEW_STEPS)
    plain = results["gpt reference"]["losses"][:FEW_STEPS]
    assert results[case]["losses"] != pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("case", [job["id"] for job in SCHEDULES])
def test_every_layout_follows_the_schedule_of_the_learning_rate(
    results: dict[str, Any], case: str
) -> None:
    equals(results[case], results["gpt schedule reference"], 1e-5, FEW_STEPS)


@pytest.mark.parametrize("case", quick_and_heavy(PACKED, MORE_PACKED))
def test_packed_documents_train_as_if_each_were_a_sequence_of_its_own(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    model = case["id"].split()[0]
    equals(results[case["id"]], results[f"{model} documents reference"], 1e-5, FEW_STEPS)
    one_stream = results[f"{model} reference"]["losses"][:FEW_STEPS]
    assert results[case["id"]]["losses"] != pytest.approx(one_stream, rel=1e-3)


@pytest.mark.parametrize("case", quick_and_heavy(VALIDATIONS, MORE_VALIDATIONS))
def test_validation_tells_the_loss_of_one_process_and_changes_nothing(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    """Neither what is learned, nor what a step sends."""
    found = results[case["id"]]
    kind = "goldfish" if "goldfish" in case["config"] else "reference"
    expected = results[f"gpt validated {kind}"]
    equals(found, expected, 1e-5, FEW_STEPS)
    assert found["validation_losses"].keys() == {"2", "4"}
    assert found["validation_losses"] == pytest.approx(expected["validation_losses"], rel=1e-5)
    config = TrainConfig.parse({**case["config"], "measured_steps": FEW_STEPS})
    assert found["communication"] == expected_traffic(config, case["ranks"], 0)


@pytest.mark.parametrize(
    ("precision", "zero_stage"),
    [*QUICK_SIXTEEN, *(pytest.param(*case, marks=pytest.mark.heavy) for case in OTHER_SIXTEEN)],
)
def test_sixteen_bits_follow_float32_alike_in_every_zero_stage(
    results: dict[str, Any], precision: str, zero_stage: int
) -> None:
    expected = results["gpt reference"]["losses"][:FEW_STEPS]
    exact = {"bf16": 2**-8, "fp16": 2**-10}[precision]
    found = results[f"gpt {precision} zero {zero_stage}"]
    assert found["losses"] == pytest.approx(expected, rel=exact)
    assert found["losses"] != expected
    assert found["skipped_steps"] == 0


@pytest.mark.parametrize("case", quick_and_heavy(EIGHT_BITS, MORE_EIGHT_BITS))
def test_products_in_eight_bits_follow_float32(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    """A product's error is 2**-5 of it; most of it cancels in a sum over all tokens."""
    found, expected = results[case["id"]], results["llama reference"]["losses"]
    assert found["losses"] == pytest.approx(expected, rel=2**-7)
    assert found["losses"] != pytest.approx(expected, rel=1e-5)
    assert found["skipped_steps"] == 0 and found["ranks_agree"]


def test_a_mesh_in_bf16_follows_float32(results: dict[str, Any]) -> None:
    expected = results["llama reference"]["losses"][:FEW_STEPS]
    assert results["llama bf16 mesh"]["losses"] == pytest.approx(expected, rel=2**-8)


def test_an_overflow_skips_steps_on_all_ranks_until_the_scale_fits(results: dict[str, Any]) -> None:
    found = results["gpt overflow"]
    finite = [math.isfinite(norm) for norm in found["grad_norms"]]
    assert 0 < found["skipped_steps"] == finite.count(False) < STEPS
    assert finite[-1]
    assert all(math.isfinite(loss) for loss in found["losses"])
    assert found["ranks_agree"]


def test_a_pipeline_holds_buffers_of_micro_batches_in_flight_only(results: dict[str, Any]) -> None:
    for case in ("gpt buffers", "gpt buffers vpp"):
        assert results[case]["most"] <= 4  # of 16 micro-batches
        assert results[case]["after"] == 0
