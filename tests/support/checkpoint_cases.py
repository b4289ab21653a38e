"""Jobs for ``checkpoint_worker``, and what is in a checkpoint."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp

WORKER = Path(__file__).with_name("checkpoint_worker.py")


Job = dict[str, Any]


RunPhases = Callable[..., dict[str, dict[str, Any]]]


STEPS = 3
"""Before the checkpoint, and again after it."""


GLOBAL_BATCH = 24


MODELS: dict[str, dict[str, Any]] = {
    # Sizes that no number of ranks but 2 and 4 divides.
    "gpt": {
        "num_layers": 4,
        "hidden_size": 36,
        "num_heads": 4,
        "vocab_size": 100,
        "seq_length": 12,
    },
    "llama": {
        "num_layers": 4,
        "hidden_size": 40,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_hidden_size": 56,
        "vocab_size": 84,
        "seq_length": 12,
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "swiglu",
        "linear_bias": False,
        "tied_embeddings": False,
    },
}
MODELS["qwen2"] = {**MODELS["llama"], "qkv_bias": True, "rope_theta": 1e6}
MODELS["qwen3"] = {**MODELS["llama"], "qk_norm": True, "head_size": 14}
MODELS["llama 3.1"] = {
    **MODELS["llama"],
    "rope_theta": 1000.0,
    "rope_factor": 8.0,
    "rope_original_length": 8,
}
# Blocks of windows that end before, with and behind the sequence.
MODELS["mistral"] = {**MODELS["llama"], "windowed_layers": 4, "window_size": 5}
MODELS["ministral"] = {**MODELS["llama"], "windowed_layers": 3, "window_size": 3}
MODELS["windows"] = {**MODELS["qwen3"], "windowed_layers": 2, "window_size": 4}
MODELS["mixtral"] = {
    **MODELS["llama"],
    "num_experts": 3,
    "experts_per_token": 2,
    "expert_ffn_hidden_size": 20,
}
MODELS["qwen3 moe"] = {**MODELS["mixtral"], "qk_norm": True, "head_size": 14}
MODELS["olmoe"] = {
    **MODELS["mixtral"],
    "qk_norm": True,
    "qk_norm_all_heads": True,
    "norm_topk_prob": False,
    "norm_eps": 1e-6,
}
MODELS["qwen2 moe"] = {
    **MODELS["mixtral"],
    "qkv_bias": True,
    "shared_ffn_hidden_size": 24,
    "shared_expert_gate": True,
    "norm_topk_prob": False,
}
LATENT = {
    **MODELS["mixtral"],
    "num_kv_heads": None,
    "num_experts": 8,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "shared_ffn_hidden_size": 40,
    "dense_layers": 1,
    "norm_eps": 1e-6,
}
# As V2-Lite, V2 and V3: one matrix of queries, and groups of experts without and with a bias.
MODELS["deepseek v2 lite"] = {**LATENT, "norm_topk_prob": False}
MODELS["deepseek v2"] = {
    **MODELS["deepseek v2 lite"],
    "q_lora_rank": 16,
    "n_group": 4,
    "topk_group": 1,
    "routed_scaling_factor": 16.0,
}
MODELS["deepseek v3"] = {
    **LATENT,
    "q_lora_rank": 16,
    "router_score": "sigmoid",
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "rope_type": "yarn",
    "rope_factor": 40.0,
    "rope_theta": 100.0,
    "rope_original_length": 64,
    "rope_high_freq_factor": 8.0,
}
MODELS["moe"] = {
    **MODELS["llama"],
    "num_experts": 8,
    "experts_per_token": 2,
    "expert_ffn_hidden_size": 20,
    "shared_ffn_hidden_size": 24,
    "dense_layers": 1,
}


def config(
    ranks: int, model: str = "gpt", hidden_size: int | None = None, **values: Any
) -> dict[str, Any]:
    dp = ranks // math.prod(values.get(name, 1) for name in ("tp", "cp", "pp"))
    whole = {
        "model": MODELS[model] | ({"hidden_size": hidden_size} if hidden_size else {}),
        "data": "unused",
        "precision": "fp32",
        "warmup_steps": 0,
        "measured_steps": STEPS,
        "device": "cpu",
        "seed": 7,
        "ranks_per_node": 4 if ranks % 4 == 0 else ranks,
        "ranks_per_pair": 2 if ranks % 2 == 0 else 1,
        "optimizer": {"lr": 1e-2, "grad_clip": 0.5},
        "mbs": GLOBAL_BATCH // dp // values.get("gas", 1) or 1,
    }
    return {**whole, **values}


def job(name: str, ranks: int, action: str, options: dict[str, Any], **values: Any) -> Job:
    return {
        "id": name,
        "ranks": ranks,
        "config": config(ranks, **values),
        "options": {"action": action, **options},
    }


def start_worker() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ask(worker: subprocess.Popen[str], phases: Sequence[list[Job]]) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(phases) + "\n")
    worker.stdin.flush()


def contents(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, whole, as DCP itself reads them."""
    saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {name: torch.full(entry.size, torch.nan) for name, entry in saved.items()}
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    wrong = [name for name, value in found.items() if not torch.equal(value, expected[name])]
    assert not wrong, f"{len(wrong)} of {len(found)} tensors differ, such as {wrong[0]}"
