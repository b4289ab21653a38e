"""Sweeps as vTrain publishes them: plain GPTs, milliseconds per iteration.

Bang et al. 2024 (MICRO), its artifact's tables of measured iterations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.sweeps.gpus import with_network
from analysis.sweeps.record import (
    Table,
    check,
    contradictory,
    count_column,
    drop,
    keys,
    number_column,
    shape_keys,
)
from search_spaces import Cluster
from trainer.plan.jobs import FULL, jobs

_NAMES = {
    "hidden": "hidden_size", "layers": "num_layers", "heads": "num_heads", "seq": "seq_length",
    "tp": "tp", "pp": "pp", "dp": "dp", "mbs": "mbs", "gas": "gas",
}  # fmt: skip
VTRAIN = {"iter_ms", "gbs", "n_gpu", *_NAMES}


def read_vtrain(path: Path, frame: pd.DataFrame) -> Table:
    """Read vTrain's form: Megatron-DeepSpeed, eight A100 per node, 800 Gb/s between nodes."""
    counts = {name: count_column(frame, name, path) for name in (*_NAMES, "gbs", "n_gpu")}
    times_ms = number_column(frame, "iter_ms", path)
    check(frame, "iter_ms", ~(times_ms <= 0), "a number above 0", path)
    gpts = jobs(
        {name: counts[column] for column, name in _NAMES.items()}
        | {
            "kv_heads": counts["heads"],
            "ffn_size": 4 * counts["hidden"],
            "vocab_size": number_column(frame, "vocab") if "vocab" in frame else 51200,
            "gated": False,
            "tied_embeddings": True,
            "recompute": FULL,
            "zero_stage": 0,
        }
    )
    home = with_network(Cluster.named("dgx_a100"), 4, 25)
    landscape = keys(shape_keys(gpts), gpts.layout.world_size, gpts.global_batch)
    table = Table(
        name=path.stem,
        jobs=gpts,
        clusters={home.name: home},
        cluster=np.full(len(gpts), home.name),
        framework=np.full(len(gpts), "megatron-deepspeed-2022"),
        step_time_s=times_ms / 1e3,
        peak_bytes=np.full(len(gpts), np.nan),
        failed=np.zeros(len(gpts), dtype=bool),
        model=shape_keys(gpts),
        landscape=landscape,
        campaign=landscape,
        nodes=np.ceil(gpts.layout.world_size / home.gpus_per_node),
        notes=("vocabulary of 51200 and ZeRO stage 0 are assumed",),
    )
    return drop(table, contradictory(table, counts["gbs"], counts["n_gpu"]))
