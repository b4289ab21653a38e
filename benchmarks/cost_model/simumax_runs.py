"""SimuMax's own published runs: 43 on eight B200, with measured step time and allocated memory.

Megatron-LM with Transformer Engine, the distributed optimizer, sequence parallelism, no
recomputation, micro-batches of one sequence, and models cut to 4 or 12 layers. Read from its
checkout.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from analysis.sweeps.record import Table
from benchmarks.published.gpt import one_cluster_table
from search_spaces.cluster import Cluster
from trainer.plan.jobs import Jobs, jobs, joined
from trainer.plan.sizes import Latent, Mixture

from .simumax import MissingError

RUNS = "docs/b200/b200_release_v1.2_summary.json"
CLUSTER, FRAMEWORK = "dgx_b200", "megatron-lm"
SEQ_LENGTH = 4096  # unless the case states another one
DENSE_LAYERS = 1  # of DeepSeek's cut models, by the notes
GIB = 2**30
_PADDED = 128  # Megatron pads vocabularies to a multiple of this times tp


def read_runs(folder: Path) -> Table:
    """SimuMax's runs as a table.

    Raises:
        MissingError: if the checkout is of a version without them.
    """
    path = folder / RUNS
    if not path.is_file():
        raise MissingError(f"{folder} has no {RUNS}, which came with version 1.2")
    rows = json.loads(path.read_text())["rows"]
    every = joined([_jobs(folder, row) for row in rows])
    return one_cluster_table(
        Path("simumax_b200"),
        every,
        Cluster.named(CLUSTER),
        FRAMEWORK,
        step_time_s=np.array([row["real_ms"] / 1e3 for row in rows]),
        peak_bytes=np.array([row["real_alloc_gib"] * GIB for row in rows]),
        model=np.array([str(row["model"]) for row in rows]),
        memory_measure="torch",
    )


def published_s(folder: Path) -> np.ndarray:
    """SimuMax's published prediction of each run; seconds, shape (n,)."""
    rows = json.loads((folder / RUNS).read_text())["rows"]
    return np.array([row["perf_ms"] / 1e3 for row in rows])


def _jobs(folder: Path, row: dict[str, Any]) -> Jobs:
    files = folder / "configs" / "models"
    exact = files / f"{row['model']}.json"
    file = exact if exact.is_file() else next(files.glob(f"{row['model']}_*.json"))
    model = json.loads(file.read_text())
    degrees = {key: int(value) for key, value in re.findall(r"(tp|cp|ep|pp)(\d+)", row["parallel"])}
    tp, cp, pp = (degrees.get(key, 1) for key in ("tp", "cp", "pp"))
    length = re.search(r"seq(\d+)", row["case"])
    latent, mixture = _latent(model), _mixture(model)
    heads = model["head_num"]
    sizes = heads * model["head_size"]
    if latent is not None:
        sizes = heads * (latent.key_size + latent.rotary_size + latent.value_size) / 2
    return jobs(
        {
            "num_layers": row["layer_num"],
            "hidden_size": model["hidden_size"],
            "num_heads": heads,
            "attention_size": sizes,
            "kv_heads": model["kv_head_num"],
            "ffn_size": model["intermediate_size"],
            "gated": model["use_swiglu"],
            "vocab_size": -(-model["vocab_size"] // (_PADDED * tp)) * _PADDED * tp,
            "seq_length": int(length[1]) if length else SEQ_LENGTH,
            "tied_embeddings": False,
            "world_size": 8,
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "ep": degrees.get("ep", 1),
            "etp": 1,
            "mbs": 1,
            "gas": row["mbc"],
            "zero_stage": 1,
            "sequence_parallel": tp > 1,
            "fused_loss": True,
            "mixture": mixture,
            "latent": latent,
        }
    )


def _mixture(model: dict[str, Any]) -> Mixture | None:
    if model.get("expert_num", 1) == 1:
        return None
    return Mixture(
        num_experts=model["expert_num"],
        experts_per_token=model["topk"],
        expert_ffn_size=model["moe_ffn_hidden_size"],
        shared_ffn_size=model["moe_shared_expert_intermediate_size"],
        dense_layers=DENSE_LAYERS,
        capacity=1.0,
    )


def _latent(model: dict[str, Any]) -> Latent | None:
    if model.get("attention_type") != "mla":
        return None
    return Latent(
        query_rank=model["q_lora_rank"],
        key_value_rank=model["kv_lora_rank"],
        key_size=model["qk_head_dim"],
        rotary_size=model["qk_pos_emb_head_dim"],
        value_size=model["v_head_dim"],
    )
