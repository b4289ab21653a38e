"""Layouts of mixtures of experts, compared with one process; a handful, and all of eight ranks."""

from __future__ import annotations

import itertools
from typing import Any

STEPS = 3
GLOBAL_BATCH = 8
SHAPE = {
    "num_layers": 4,
    "hidden_size": 16,
    "num_heads": 4,
    "vocab_size": 64,
    "seq_length": 16,
    "norm": "rmsnorm",
    "positions": "rotary",
    "activation": "swiglu",
    "linear_bias": False,
    "tied_embeddings": False,
    "num_experts": 8,
    "experts_per_token": 2,
    "expert_ffn_hidden_size": 12,
}
MODELS: dict[str, dict[str, Any]] = {
    # Of the first pipeline stage of two, half of the layers are dense.
    "softmax": {**SHAPE, "shared_ffn_hidden_size": 24, "ffn_hidden_size": 40, "dense_layers": 1},
    "sigmoid": {
        **SHAPE, "shared_ffn_hidden_size": 8, "activation": "gelu", "router_score": "sigmoid",
        "num_layers": 2,
    },
    # Each token meets all experts, so that they are as balanced as the cost model takes them for.
    "balanced": {
        **SHAPE, "num_experts": 4, "experts_per_token": 4, "shared_ffn_hidden_size": 8,
        "num_layers": 2,
    },
}  # fmt: skip
MODELS["deep-sigmoid"] = {**MODELS["sigmoid"], "num_layers": 4}
LATENT = {"kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5}
# As DeepSeek V2 and V3, whose queries are one matrix or have a rank; and latent attention alone.
MODELS["latent"] = {
    **MODELS["softmax"], **LATENT, "norm_topk_prob": False, "routed_scaling_factor": 3.0,
    "n_group": 4, "topk_group": 1,
}  # fmt: skip
MODELS["latent-sigmoid"] = {
    **MODELS["deep-sigmoid"], **LATENT, "q_lora_rank": 12, "routed_scaling_factor": 2.5,
    "n_group": 2, "topk_group": 1, "rope_type": "yarn", "rope_factor": 4.0,
    "rope_high_freq_factor": 32.0, "rope_original_length": 128,
}  # fmt: skip
MODELS["latent-dense"] = {
    **{key: value for key, value in SHAPE.items() if "expert" not in key},
    **LATENT, "q_lora_rank": 12, "ffn_hidden_size": 24,
}  # fmt: skip
MODELS["latent-balanced"] = {**MODELS["balanced"], **LATENT}
# As OLMoE and Qwen 2 MoE.
MODELS["gated"] = {
    **MODELS["sigmoid"], "router_score": "softmax", "shared_expert_gate": True, "qk_norm": True,
    "qk_norm_all_heads": True, "norm_topk_prob": False,
}  # fmt: skip
MODELS["gated-each"] = {**MODELS["gated"], "qk_norm_all_heads": False}
BALANCE: dict[str, dict[str, Any]] = {
    "softmax": {"moe_aux_loss_coeff": 0.05},
    "sigmoid": {"moe_router_bias_update_rate": 0.01, "moe_aux_loss_coeff": 0.01},
    "balanced": {},
}
BALANCE["deep-sigmoid"] = BALANCE["latent-sigmoid"] = BALANCE["sigmoid"]
BALANCE["latent"] = BALANCE["softmax"]


def case(model: str, ranks: int = 8, name: str = "", **values: Any) -> dict[str, Any]:
    """In float64, unless float32 is asked for by ``observe``; dp is what the axes leave."""
    observe = values.pop("observe", None)
    replicas = max(ranks, 1)
    for axis in ("tp", "pp", "cp"):
        replicas //= values.get(axis, 1)
    values.setdefault("gas", min(2, GLOBAL_BATCH // replicas))
    said = [model, *(f"{key}={value}" for key, value in values.items())]
    config = {
        "model": MODELS[model],
        "data": "unused",
        "precision": "fp32",
        "device": "cpu",
        "warmup_steps": 0,
        "measured_steps": STEPS,
        "optimizer": {"lr": 1e-2, "grad_clip": 0, "eps": 1e-6},
        "mbs": GLOBAL_BATCH // replicas // values["gas"],
        **BALANCE.get(model, {}),
        **values,
    }
    options: dict[str, Any] = {"global_batch": GLOBAL_BATCH}
    options |= {"float64": True} if observe is None else {}
    options["observe"] = observe or {}
    if ranks == 0:
        said = [model, "reference"]
    return {
        "id": " ".join([*said, *([name] if name else []), *(["fp32"] if observe else [])]),
        "ranks": ranks, "config": config, "options": options,
    }  # fmt: skip


REFERENCES = [
    case(model, 0) for model in ("softmax", "sigmoid", "deep-sigmoid", "latent-dense", "gated")
]
MORE_REFERENCES = [case(model, 0) for model in ("latent", "latent-sigmoid", "gated-each")]
SP: dict[str, Any] = {"tp": 2, "sequence_parallel": True}
QUICK = [
    case("softmax", 4, ep=2, zero_stage=2),
    case("sigmoid", 4, ep=4, zero_stage=3, recompute="full"),  # ep = dp: one rank has each expert
    case("softmax", 4, ep=4, zero_stage=1, cp=2, recompute="selective"),  # ep = dp * cp
    case("sigmoid", 4, ep=2, cp=2, zero_stage=3, recompute="full"),
    case("softmax", 4, ep=2, pp=2, zero_stage=3),
    case("sigmoid", 4, ep=2, **SP),
    case("softmax", 4, ep=4, zero_stage=3, **SP),
    case("sigmoid", 2, zero_stage=3),
    case("latent-dense", 4, tp=2, pp=2, recompute="selective"),
    case("latent-dense", 4, cp=2, zero_stage=3, **SP),
    case("gated", 4, ep=4, zero_stage=2, cp=2),
]
AGAIN = {**QUICK[1], "id": f"{QUICK[1]['id']} again"}
OFFLOADED = {
    **QUICK[7],
    "id": f"{QUICK[7]['id']} offloaded",
    "config": {**QUICK[7]["config"], "offload_activations": True},
}


def fused(case: dict[str, Any]) -> dict[str, Any]:
    config = {**case["config"], "async_tp": True}
    return {**case, "id": f"{case['id']} fused", "config": config}


FUSED = [fused(QUICK[number]) for number in (5, 9)]


def every_layout() -> list[dict[str, Any]]:
    """All factorizations of eight ranks, and of each all ep."""
    cases = []
    for tp, pp, cp in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4, 8)):
        if 8 % (tp * pp * cp):
            continue
        for ep, zero_stage in itertools.product((1, 2, 4, 8), range(4)):
            if (8 // pp) % ep or (tp > 1 and ep % tp) or (ep == 1 and tp > 1):
                continue
            number = tp + pp + cp + ep + zero_stage
            values: dict[str, Any] = {"ep": ep, "zero_stage": zero_stage}
            values |= {"tp": tp, "sequence_parallel": True} if tp > 1 else {}
            values |= {k: v for k, v in (("pp", pp), ("cp", cp)) if v > 1}
            values["recompute"] = ("none", "selective", "full")[number % 3]
            cases.append(case(("softmax", "deep-sigmoid")[number % 2], **values))
    return [
        *cases,
        case("softmax", ep=2, pp=2, vpp=2, zero_stage=3, rank_order="tp-pp-cp-dp"),
        case("deep-sigmoid", ep=4, pp=2, vpp=2, pipeline_schedule="LoopedBFS", zero_stage=2, **SP),
        case("deep-sigmoid", ep=4, placement="hpz", ranks_per_node=4),
        case("softmax", ep=2, placement="mics", ranks_per_node=4, recompute="full"),
        case("softmax", ep=2, weight_shard=2, gradient_shard=4, optimizer_shard=8),
        case("deep-sigmoid", ep=2, zero_stage=3, reduce_gradients="step", pp=2),
        case("deep-sigmoid", 4, ep=2, zero_stage=3, recompute="full", compile=True),
        case("softmax", 4, ep=2, zero_stage=2, recompute="selective", compile=True, **SP),
        case("softmax", 4, ep=4, cp=2, zero_stage=3, compile=True),
    ]


def every_latent_layout() -> list[dict[str, Any]]:
    """All factorizations of eight ranks, with latent attention alone and in a mixture."""
    cases = []
    for tp, pp, cp in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4)):
        if 8 % (tp * pp * cp):
            continue
        number = tp + pp + cp
        values: dict[str, Any] = {k: v for k, v in (("tp", tp), ("pp", pp), ("cp", cp)) if v > 1}
        values["recompute"] = ("none", "selective", "full")[number % 3]
        for further in (0, 1):
            split = {"sequence_parallel": True} if tp > 1 and further else {}
            zero_stage = (number + 3 * further) % 4
            cases.append(case("latent-dense", zero_stage=zero_stage, **values, **split))
        split = {"sequence_parallel": True} if tp > 1 else {}
        model = ("latent", "latent-sigmoid")[number % 2]
        cases.append(case(model, ep=8 // pp, zero_stage=number % 4, **values, **split))
    deferred: dict[str, Any] = {"tp": 2, "pp": 2, "pipeline_schedule": "InterleavedZeroBubble"}
    return [
        *cases,
        case("latent-dense", **deferred),
        case("latent-dense", **deferred, sequence_parallel=True, vpp=2),
        case("latent-dense", pp=2, vpp=2, pipeline_schedule="ZBVZeroBubble", tp=2),
        case("latent-dense", tp=2, tune_kernels=True, chunked_loss=True),
        case("latent-dense", zero_stage=3, recompute="selective", chunked_loss=True),
        case("latent-dense", 2, cp=2, compile=True),
        case("gated", ep=2, pp=2, zero_stage=3, recompute="full"),
        case("gated-each", ep=2, zero_stage=3, recompute="full", **SP),
        case("gated-each", ep=4, cp=2, zero_stage=1, recompute="selective", **SP),
    ]


EVERY_LATENT = every_latent_layout()
EVERY = every_layout()
SENT: dict[str, Any] = {"observe": {"traffic": True}, "measured_steps": 1}
BYTES = [
    case("balanced", 4, ep=2, zero_stage=2, recompute="full", **SENT),
    case("balanced", 4, ep=4, zero_stage=3, recompute="full", **SP, **SENT),
    # Experts' gradients are whole, though those beside them are split, and sent as INT4.
    case("balanced", 4, ep=2, placement="zero_topo", ranks_per_node=2, **SENT),
    case("balanced", 4, ep=2, cp=2, zero_stage=3, moe_aux_loss_coeff=0.1, **SENT),
    case("balanced", 4, ep=2, pp=2, zero_stage=3, moe_router_bias_update_rate=0.1, **SENT),
    case("balanced", 4, ep=2, zero_stage=3, ranks_per_node=2, **SENT),
    case("latent-balanced", 4, ep=2, cp=2, zero_stage=1, recompute="full", **SENT),
]
UNEVEN = case("softmax", 4, ep=2, **SENT)
