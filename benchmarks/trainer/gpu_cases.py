"""Jobs whose steps are run on the pretended device, and the table of what a layer asks of it."""

from __future__ import annotations

from typing import Any

WIDTHS: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8,
    "ffn_hidden_size": 14336, "vocab_size": 4096, "seq_length": 8192, "norm": "rmsnorm",
    "positions": "rotary", "activation": "swiglu", "linear_bias": False, "tied_embeddings": False,
}  # fmt: skip
GPT = {"norm": "layernorm", "positions": "learned", "activation": "gelu", "linear_bias": True,
       "tied_embeddings": True, "num_kv_heads": 32}  # fmt: skip
LATENT = {"num_kv_heads": 32, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
          "qk_rope_head_dim": 64, "v_head_dim": 128}  # fmt: skip
PIPELINE = {"pp": 2, "gas": 4, "zero_stage": 1}
FOLDED = {**PIPELINE, "vpp": 2, "model": {"num_layers": 4}}

Case = tuple[int, dict[str, Any]]
CASES: dict[str, Case] = {
    "one rank": (1, {}),
    "zero 0": (8, {"ddp_bucket_size": 100_000_000}),
    "zero 1": (8, {"zero_stage": 1, "mbs": 2, "model": GPT}),
    "zero 2": (8, {"zero_stage": 2, "gas": 2}),
    "zero 3": (8, {"zero_stage": 3, "gas": 2}),
    "zero 3, reduced once": (
        8, {"zero_stage": 3, "gas": 2, "reduce_gradients": "step", "reduce_precision": "bf16"}
    ),
    "hpz": (16, {"placement": "hpz", "gas": 2}),
    "hpz, renewed": (
        16, {"zero_stage": 3, "secondary_shard": 8, "refresh_secondary": "micro_batch"}
    ),
    "mics": (16, {"placement": "mics"}),
    "zero++": (16, {"placement": "zero++", "gas": 2}),
    "zero++, int8 copy": (16, {"placement": "zero++", "quantize_secondary": True}),
    "quantized": (16, {"zero_stage": 2, "quantize_weights": True, "quantize_gradients": True}),
    "zero_topo": (16, {"placement": "zero_topo", "ranks_per_pair": 2, "gas": 2}),
    "shards": (16, {"weight_shard": 2, "gradient_shard": 8, "optimizer_shard": 16}),
    "zero 3, selective": (8, {"zero_stage": 3, "recompute": "selective"}),
    "tp 8, sequence parallel": (8, {"tp": 8, "sequence_parallel": True}),
    "tp 8, asynchronous": (8, {"tp": 8, "sequence_parallel": True, "async_tp": True}),
    "tp, asynchronous, zero bubble": (
        8, {**FOLDED, "tp": 2, "sequence_parallel": True, "async_tp": True, "recompute": "full",
            "pipeline_schedule": "ZBVZeroBubble"}
    ),
    "tp, selective": (8, {"tp": 4, "recompute": "selective", "time_communication": True}),
    "cp 4": (4, {"cp": 4}),
    "latent": (8, {"zero_stage": 3, "recompute": "selective", "model": LATENT}),
    "latent, tp and cp": (8, {"tp": 2, "cp": 2, "sequence_parallel": True, "model": LATENT}),
    "grid": (16, {"gx": 2, "gy": 2, "gz": 2, "mbs": 2, "gas": 2, "zero_stage": 1}),
    "grid, no overlap": (
        8,
        {"gx": 2, "gy": 2, "gz": 2, "mbs": 2, "overlap_all_reduce": False,
         "overlap_reduce_scatter": False, "overlap_all_gather": False},
    ),
    "pp": (8, {**PIPELINE, "rank_order": "tp-pp-cp-dp"}),
    "pp, uneven": (8, {**PIPELINE, "model": {"num_layers": 4}, "first_stage_layers": 3,
                       "last_stage_layers": 1}),
    "pp, interleaved": (8, {**FOLDED, "zero_stage": 3, "chunked_loss": True}),
    "pp, zero bubble": (8, {**FOLDED, "pipeline_schedule": "ZBVZeroBubble"}),
    "selective": (1, {"recompute": "selective"}),
    "full": (1, {"recompute": "full"}),
    "full, every second": (1, {"recompute": "full", "recompute_every": 2}),
    "offloaded": (8, {"zero_stage": 3, "gas": 2, "recompute": "selective",
                      "offload_activations": True, "model": {"num_layers": 4}}),
    "offloaded, pp": (8, {**PIPELINE, "offload_activations": True, "model": {"num_layers": 6}}),
    "fp32": (1, {"precision": "fp32"}),
    "fp16": (8, {"precision": "fp16", "zero_stage": 3}),
    "tuned": (1, {"tune_kernels": True}),
    "documents": (8, {"documents": {}, "zero_stage": 3}),
    "documents, AMD": (1, {"documents": {}}),
    "fp32, AMD": (1, {"precision": "fp32"}),
    "masked": (8, {"documents": {"reset_attention_mask": False}, "goldfish": {}, "zero_stage": 1}),
}  # fmt: skip
"""Ranks and settings; ``model`` has what differs from ``WIDTHS``."""

LAYERS = {
    "one rank": "no recomputation",
    "selective": "selective recomputation",
    "full": "full recomputation",
    "zero 3, selective": "ZeRO-3, selective",
    "tp 8, sequence parallel": "tp 8, sequence parallel",
    "tp 8, asynchronous": "tp 8, asynchronous",
    "cp 4": "cp 4",
    "documents": "documents, ZeRO-3",
    "fp32": "FP32",
}
"""Cases whose layers are in the table: the difference of two layers and one."""


def row(found: dict[str, Any]) -> list[object]:
    """A layer's row of the table."""
    layer = found["layer"]
    kernels = layer["kernels"]
    products = sum(n for name, n in kernels.items() if name in ("mm", "addmm"))
    copies = sum(n for name, n in kernels.items() if "copy" in name or name in ("cat", "clone"))
    total = sum(kernels.values())
    return [LAYERS[found["name"]], total, products, copies, layer["bytes"] >> 20]
