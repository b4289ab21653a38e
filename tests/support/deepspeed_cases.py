"""Configurations that either engine trains."""

from __future__ import annotations

from typing import Any

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
