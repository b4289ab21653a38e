"""Jobs whose losses and norms are compared with those of one process."""

from __future__ import annotations

from typing import Any

from support.placement_cases import EPS

STEPS = 10
FEW_STEPS = 3
"""Of the layouts that `make test` runs."""
GLOBAL_BATCH = 16
GRAD_CLIP = 0.5
SHALLOW: dict[str, dict[str, Any]] = {
    "gpt": {"num_layers": 4, "hidden_size": 32, "num_heads": 8, "vocab_size": 64, "seq_length": 16},
    "llama": {
        "num_layers": 4,
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
DEEP = {f"deep-{name}": {**shape, "num_layers": 8} for name, shape in SHALLOW.items()}
WINDOWS = {**SHALLOW["llama"], "windowed_layers": 2, "window_size": 5}
MODELS = SHALLOW | DEEP | {"windows": WINDOWS}
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
    # A single replica reduces nothing, however it is asked to.
    job("one rank", "llama", 1, mbs=8, gas=2, quantize_gradients=True),
    layout("gpt", 2, 1, 2, 2, sequence_parallel=True, recompute="selective", recompute_every=2),
    layout("llama", 2, 2, 2, 2, vpp=2, rank_order="tp-pp-cp-dp", chunked_loss=True),
    layout("deep-gpt", 1, 4, 1, 0, first_stage_layers=1, last_stage_layers=3),
    layout(
        "deep-llama", 1, 2, 2, 3, vpp=2, first_stage_layers=6, recompute="full",
        pipeline_schedule="LoopedBFS",
    ),
    layout(
        "gpt", 2, 2, 1, 0, vpp=2, pipeline_schedule="InterleavedZeroBubble", chunked_loss=True
    ),
    layout("llama", 1, 2, 2, 1, recompute="full", pipeline_schedule="InterleavedZeroBubble"),
    layout("llama", 2, 2, 1, 0, vpp=2, gas=4, pipeline_schedule="ZBVZeroBubble"),
    layout("gpt", 1, 1, 2, 1, cp=2, recompute="selective"),
    layout("windows", 2, 2, 1, 1, sequence_parallel=True, recompute="selective"),
    layout(
        "llama", 2, 1, 1, 3, cp=2, recompute="full", sequence_parallel=True, chunked_loss=True
    ),
]  # fmt: skip


def every_schedule() -> list[dict[str, Any]]:
    """What the sweeps over degrees leave out: schedules and uneven stages, on all 8 ranks."""
    return [
        layout("deep-gpt", 1, 4, 2, 1, first_stage_layers=1, last_stage_layers=3),
        layout("deep-llama", 1, 2, 4, 3, vpp=2, first_stage_layers=6, recompute="full"),
        layout(
            "deep-gpt", 2, 1, 4, 2, sequence_parallel=True, recompute="selective", recompute_every=2
        ),
        layout("deep-llama", 1, 2, 4, 3, vpp=2, pipeline_schedule="LoopedBFS", recompute="full"),
        layout("deep-gpt", 1, 4, 2, 1, vpp=2, gas=2, pipeline_schedule="LoopedBFS"),
        layout("deep-gpt", 2, 2, 2, 1, vpp=2, pipeline_schedule="InterleavedZeroBubble"),
        layout(
            "deep-llama", 2, 2, 2, 0, vpp=2, gas=8, sequence_parallel=True,
            pipeline_schedule="InterleavedZeroBubble",
        ),
        layout("deep-gpt", 1, 4, 2, 1, vpp=2, gas=2, pipeline_schedule="ZBVZeroBubble"),
        layout(
            "deep-llama", 1, 4, 2, 0, vpp=2, first_stage_layers=2, pipeline_schedule="ZBVZeroBubble"
        ),
        layout("deep-gpt", 2, 2, 1, 1, vpp=2, cp=2, gas=4, pipeline_schedule="ZBVZeroBubble"),
        *(
            layout(model, 2, 2, dp, zero_stage, cp=2 // dp, rank_order="tp-pp-cp-dp")
            for model in DEEP
            for dp in (1, 2)
            for zero_stage in range(4)
        ),
        layout(
            "deep-llama", 1, 4, 2, 0, recompute="full", pipeline_schedule="InterleavedZeroBubble"
        ),
        layout("windows", 1, 1, 2, 3, recompute="full"),
        layout("windows", 1, 1, 2, 3),
        job("grid", "windows", 4, gx=2, gy=2, mbs=8, gas=2, recompute="selective"),
        layout("windows", 2, 1, 1, 0, compile=True, recompute="selective"),
    ]  # fmt: skip


def every_layout() -> list[dict[str, Any]]:
    cases = []
    for model in DEEP:
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
    for model in DEEP:
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
    job(
        "compiled zero 3", "gpt", 2, cp=2, zero_stage=3, mbs=8, gas=2, compile=True,
        recompute="full",
    ),
]  # fmt: skip
MORE_COMPILED = [
    job("compiled dp", "gpt", 2, zero_stage=3, mbs=4, gas=2, compile=True),
    job("compiled grid", "gpt", 4, gx=2, gy=2, mbs=8, gas=2, compile=True, recompute="selective"),
    job("compiled depth", "llama", 4, gy=2, gz=2, mbs=8, gas=2, compile=True, recompute="full"),
    job(
        "compiled depth, no overlap", "gpt", 2, gz=2, mbs=8, gas=2, compile=True,
        overlap_reduce_scatter=False, overlap_all_gather=False,
    ),
]  # fmt: skip


def offloaded(case: dict[str, Any]) -> dict[str, Any]:
    config = {**case["config"], "offload_activations": True}
    return {**case, "id": f"{case['id']} offloaded", "config": config}


OFFLOADED = [offloaded(QUICK[number]) for number in (2, 5, 8)]
MORE_OFFLOADED = [
    *(offloaded(QUICK[number]) for number in (3, 6, 7, 9, 10, 11)),
    *map(offloaded, [*COMPILED, *MORE_COMPILED]),
]


def fused(case: dict[str, Any]) -> dict[str, Any]:
    config = {**case["config"], "async_tp": True}
    return {**case, "id": f"{case['id']} fused", "config": config}


SPLIT = [
    layout("llama", 4, 1, 1, 3, sequence_parallel=True, recompute="full"),
    layout(
        "llama", 2, 2, 1, 1, vpp=2, gas=4, sequence_parallel=True,
        pipeline_schedule="ZBVZeroBubble",
    ),
]  # fmt: skip
MORE_SPLIT = [
    layout("gpt", 4, 1, 1, 1, sequence_parallel=True, recompute="selective"),
    layout("deep-llama", 2, 2, 2, 1, vpp=2, sequence_parallel=True, recompute="full"),
    layout("llama", 4, 1, 2, 3, sequence_parallel=True),
    job(
        "compiled tp 4", "gpt", 4, tp=4, mbs=8, gas=2, compile=True, sequence_parallel=True,
        recompute="full",
    ),
]  # fmt: skip
FUSED = [fused(case) for case in (QUICK[2], *SPLIT, COMPILED[0])]
MORE_FUSED = [fused(case) for case in (*QUICK[10:], *MORE_SPLIT)]
QUICK_SIXTEEN = [("bf16", 3), ("fp16", 2)]
OTHER_SIXTEEN = [("bf16", 0), ("bf16", 1), ("bf16", 2), ("fp16", 0), ("fp16", 1), ("fp16", 3)]


def sixteen_bits(precision: str, zero: int) -> dict[str, Any]:
    return job(
        f"{precision} zero {zero}", "gpt", 2, precision=precision, mbs=4, gas=2, zero_stage=zero
    )


WITHOUT_CLIP = job("no clip", "gpt", 4, tp=2, mbs=4, gas=2, optimizer={"lr": 1e-3, "grad_clip": 0})
SPECIAL = [
    *COMPILED,
    # Fewer micro-batches than stages, or no multiple of them; several buckets; 16 bits.
    job("gas below pp", "gpt", 4, pp=4, mbs=8, gas=2),
    job(
        "gas by no pp",
        "deep-gpt",
        3,
        pp=3,
        vpp=2,
        first_stage_layers=4,
        mbs=4,
        gas=4,
        pipeline_schedule="LoopedBFS",
    ),
    job("buckets", "gpt", 4, ddp_bucket_size=5000, zero_stage=1, mbs=2, gas=2),
    *(sixteen_bits(precision, zero) for precision, zero in QUICK_SIXTEEN),
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
    WITHOUT_CLIP,
    job("buffers", "gpt", 4, {"buffers": True}, pp=4, mbs=1, gas=16),
    job("buffers vpp", "deep-gpt", 4, {"buffers": True}, pp=4, vpp=2, mbs=1, gas=16),
]
MORE_SPECIAL = [
    *MORE_COMPILED,
    job("buckets pp", "llama", 4, ddp_bucket_size=5000, pp=2, vpp=2, mbs=4, gas=2),
    *(sixteen_bits(precision, zero) for precision, zero in OTHER_SIXTEEN),
]
GOLDFISH: dict[str, Any] = {"goldfish": {"k": 2, "h": 3}}
WITHOUT_SOME = [
    job("goldfish mesh", "gpt", 4, cp=2, pp=2, mbs=8, gas=2, zero_stage=1, **GOLDFISH),
    job("goldfish zero3", "gpt", 2, mbs=4, gas=2, zero_stage=3, **GOLDFISH),
]
GOLDFISH_REFERENCE = job("goldfish reference", "gpt", 0, **GOLDFISH)
SCHEDULED: dict[str, Any] = {
    "optimizer": {"lr": 1e-2, "grad_clip": GRAD_CLIP, "eps": EPS},
    "lr_scheduler": {"warmup_steps": 1, "total_steps": 3, "decay_type": "cosine"},
}
SCHEDULES = [job("schedule mesh", "gpt", 4, tp=2, pp=2, mbs=8, gas=2, **SCHEDULED)]
MORE_SCHEDULES = [job("schedule zero3", "gpt", 2, mbs=4, gas=2, zero_stage=3, **SCHEDULED)]
SCHEDULE_REFERENCE = job("schedule reference", "gpt", 0, **SCHEDULED)
DOCUMENTS: dict[str, Any] = {"documents": {}}
PACKED = [
    job(
        "documents vpp", "llama", 4, tp=2, pp=2, vpp=2, mbs=4, gas=4, recompute="full", **DOCUMENTS
    ),
    job("documents grid", "gpt", 4, gy=2, gz=2, mbs=8, gas=2, **DOCUMENTS),
]  # fmt: skip
MORE_PACKED = [
    job("documents zero3", "llama", 2, mbs=4, gas=2, zero_stage=3, **DOCUMENTS),
    job("documents pp", "gpt", 4, pp=2, mbs=4, gas=2, zero_stage=2, **DOCUMENTS),
    job(
        "documents tp", "gpt", 4, tp=2, mbs=4, gas=2, sequence_parallel=True,
        recompute="selective", **DOCUMENTS,
    ),
]  # fmt: skip
PACKED_REFERENCES = [job("documents reference", model, 0, **DOCUMENTS) for model in SHALLOW]
VALIDATED: dict[str, Any] = {"validation": {"data": "unused", "freq": 2, "steps": 2}}
VALIDATIONS = [
    job("validated zero3", "gpt", 4, cp=2, mbs=4, gas=2, zero_stage=3, **VALIDATED),
    job(
        "validated vpp", "gpt", 4, tp=2, pp=2, vpp=2, mbs=4, gas=4, sequence_parallel=True,
        chunked_loss=True, **GOLDFISH, **VALIDATED,
    ),
    job(
        "validated zbv", "gpt", 4, pp=2, vpp=2, mbs=4, gas=2, zero_stage=1, recompute="full",
        pipeline_schedule="ZBVZeroBubble", rank_order="tp-pp-cp-dp", ranks_per_node=2, **VALIDATED,
    ),
    job("validated grid", "gpt", 4, gx=2, gz=2, mbs=8, gas=2, **VALIDATED),
]  # fmt: skip
MORE_VALIDATIONS = [
    job(
        "validated zero2 pp", "gpt", 4, pp=2, mbs=4, gas=2, zero_stage=2,
        rank_order="tp-pp-cp-dp", ranks_per_node=2, **VALIDATED,
    ),
    job("validated hpz", "gpt", 4, mbs=2, gas=2, placement="hpz", ranks_per_node=2, **VALIDATED),
]  # fmt: skip
VALIDATION_REFERENCES = [
    job("validated reference", "gpt", 0, **VALIDATED),
    job("validated goldfish", "gpt", 0, **GOLDFISH, **VALIDATED),
]
FEW_REFERENCES = [
    {**job("no clip reference", "gpt", 0), "config": WITHOUT_CLIP["config"]},
    GOLDFISH_REFERENCE,
    SCHEDULE_REFERENCE,
    *VALIDATION_REFERENCES,
    *PACKED_REFERENCES,
]


def in_few_steps(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**job, "config": {"measured_steps": FEW_STEPS} | job["config"]} for job in jobs]
