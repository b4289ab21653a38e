"""Jobs of plain GPTs and tables of one cluster, for publications that state little more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.cost.jobs import FULL, Jobs, jobs
from analysis.sweeps.record import Keys, Table, keys, number_column, shape_keys
from search_spaces import Cluster


def gpt_jobs(frame: pd.DataFrame, **columns: Any) -> Jobs:
    """Plain GPTs (no gates, no grouped queries, tied embeddings) with full recomputation."""
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
    """A table of one cluster, with defaults for unknown columns."""
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
