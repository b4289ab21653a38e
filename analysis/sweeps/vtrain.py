"""Sweeps as vTrain publishes them: plain GPTs, milliseconds per iteration.

Bang et al. 2024 (MICRO), its artifact's tables of measured iterations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.cost.jobs import FULL, Jobs, jobs
from analysis.sweeps.gpus import with_network
from analysis.sweeps.record import (
    Keys,
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

_COUNTS = (
    *("hidden", "layers", "heads", "seq", "tp", "pp", "dp", "mbs", "gas"),
    *("gbs", "n_gpu"),
)
VTRAIN = {"iter_ms", *_COUNTS}


def gpt_jobs(frame: pd.DataFrame, **columns: Any) -> Jobs:
    """Jobs of plain GPTs (no gates, no grouped queries, tied embeddings), all recomputed."""
    given: dict[str, Any] = {
        "num_layers": number_column(frame, "layers"),
        "hidden_size": number_column(frame, "hidden"),
        "num_heads": number_column(frame, "heads"),
        "gated": False,
        "tied_embeddings": True,
        "recompute": FULL,
        "zero_stage": 0,
    }
    for column, name in (("seq", "seq_length"), ("vocab", "vocab_size")):
        if column in frame:
            given[name] = number_column(frame, column)
    for name in ("tp", "pp", "dp", "mbs", "gas"):
        if name in frame:
            given[name] = number_column(frame, name)
    given |= columns
    given.setdefault("kv_heads", given["num_heads"])
    given.setdefault("ffn_size", 4 * given["hidden_size"])
    return jobs(given)


def one_cluster_table(
    path: Path, j: Jobs, home: Cluster, framework: str | Keys, **columns: Any
) -> Table:
    """A table of one machine, with defaults for what is not known."""
    nodes = np.ceil(j.world_size / home.gpus_per_node)
    landscape = keys(shape_keys(j), j.world_size, j.global_batch)
    known: dict[str, Any] = {
        "clusters": {home.name: home},
        "cluster": np.full(len(j), home.name),
        "framework": np.full(len(j), framework) if isinstance(framework, str) else framework,
        "step_time_s": np.full(len(j), np.nan),
        "peak_bytes": np.full(len(j), np.nan),
        "failed": np.zeros(len(j), dtype=bool),
        "model": shape_keys(j),
        "landscape": landscape,
        "campaign": columns.get("landscape", landscape),
        "nodes": nodes,
    }
    return Table(name=path.stem, jobs=j, **{**known, **columns})


def read_vtrain(path: Path, frame: pd.DataFrame) -> Table:
    """vTrain: Megatron-DeepSpeed on eight A100 a node, 800 Gb/s between nodes."""
    for name in _COUNTS:
        count_column(frame, name, path)
    times_ms = number_column(frame, "iter_ms", path)
    check(frame, "iter_ms", ~(times_ms <= 0), "a number above 0", path)
    vocab = {} if "vocab" in frame else {"vocab_size": 51200}
    j = gpt_jobs(frame, **vocab)
    made = one_cluster_table(
        path,
        j,
        with_network(Cluster.named("dgx_a100"), 4, 25),
        "megatron-deepspeed",
        step_time_s=times_ms / 1e3,
        notes=("vocabulary of 51200 and ZeRO stage 0 are assumed",),
    )
    return drop(
        made, contradictory(made, number_column(frame, "gbs"), number_column(frame, "n_gpu"))
    )
