"""Asynchronous tensor parallelism on Llama 3.1 8B and 70B: predicted gain against published.

    python -m benchmarks.cost_model.async_tp --truth FOLDER

Reads ``fsdp_async_tp_small.csv``: torchtitan's pairs with and without it, tp 8 on 64 and 256 H100.
Pairs with rowwise FP8 scales are left out: the cost model has no term for these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.cost.fitted import cost_model
from analysis.sweeps.gpus import cluster_of
from search_spaces.known import framework_named
from trainer.plan.jobs import FULL, SELECTIVE, Jobs, jobs

TABLE = "fsdp_async_tp_small.csv"
PRECISIONS = ("bf16", "float8 tensorwise")
TECHNIQUES = ("vanilla TP", "async TP")
MODELS = {"Llama3.1-8B": (32, 4096, 32, 14336), "Llama3.1-70B": (80, 8192, 64, 28672)}
SHAPE = ("num_layers", "hidden_size", "num_heads", "ffn_size")
COLUMNS = ["model", "seq", "n_gpu", "tp", "fsdp", "local_bs", "act_ckpt", "precision"]


def pairs(folder: Path) -> pd.DataFrame:
    """Tokens per second and GPU without it and with it, a row for each configuration."""
    table = pd.read_csv(folder / TABLE, comment="#")
    table = table[table["technique"].isin(TECHNIQUES) & table["precision"].isin(PRECISIONS)]
    found = table.pivot(index=COLUMNS, columns="technique", values="tokens_per_s_gpu")
    return found.reset_index()


def both(row: pd.Series) -> Jobs:
    """The configuration without it and with it."""
    return jobs(
        {
            **dict(zip(SHAPE, MODELS[row["model"]], strict=True)),
            "kv_heads": 8, "gated": True, "tied_embeddings": False, "vocab_size": 128256,
            "seq_length": row["seq"], "tp": row["tp"], "dp": row["fsdp"], "pp": 1,
            "mbs": row["local_bs"], "gas": 1, "zero_stage": 3, "fp8": row["precision"] != "bf16",
            "recompute": FULL if row["act_ckpt"] == "full" else SELECTIVE,
            "sequence_parallel": True, "async_tp": np.array([False, True]),
        }
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each pair."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, help="folder of measured tables")
    try:
        measured = pairs(parser.parse_args(arguments).truth)
    except OSError as error:
        parser.error(str(error))
    model = cost_model(cluster_of("H100-96GB HBM2e 500W"), framework_named("torchtitan"))
    print(
        "| model, GPUs | precision | predicted tokens/s/GPU | published | predicted gain "
        "| published |\n|---|---|---|---|---|---|"
    )
    for _, row in measured.iterrows():
        found = model.predict(both(row)).tokens_per_second / row["n_gpu"]
        told = np.array([row[name] for name in TECHNIQUES])
        mine, theirs = (100 * (speeds[1] / speeds[0] - 1) for speeds in (found, told))
        print(
            f"| {row['model']}, {row['n_gpu']} | {row['precision']} "
            f"| {found[0]:,.0f}, {found[1]:,.0f} | {told[0]:,.0f}, {told[1]:,.0f} "
            f"| {mine:.1f} % | {theirs:.1f} % |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
