"""Context parallelism from 4 thousand to a million tokens: predicted against published.

    python -m benchmarks.cost_model.long_context --truth FOLDER

Reads ``h100_nemo_performance_summary.csv``: Llama 2 7B in FP8 on 4 to 1,024 H100. The publication
does not state recomputation. Each row is predicted without it if that is predicted to fit, or else
with the first kind that does: with the shipped constants, whose attention kernels are those of
later releases, and with the prior's attention, which is FlashAttention 2's (``ATTENTION``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.cost.fitted import cost_model
from analysis.cost.model import CostModel, Prediction
from analysis.cost.time_constants import TimeConstants
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from trainer.plan.jobs import RECOMPUTE, jobs
from trainer.plan.model import ModelConfig

MEGATRON_BRIDGE = framework_named("megatron-bridge")

TABLE = "h100_nemo_performance_summary.csv"
SERIES = "24.03.01 long sequence"
LLAMA2_7B = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_heads": 32,
    "ffn_hidden_size": 11008,
    "vocab_size": 32000,
    "norm": "rmsnorm",
    "positions": "rotary",
    "activation": "swiglu",
    "linear_bias": False,
    "tied_embeddings": False,
}
# FlashAttention 2 on H100, causal, heads of 128, 16k tokens: 335 TFLOP/s forward, 0.42 of the best
# product's rate (Shah et al. 2024, arXiv 2407.08608, figure 5). The release is of March 2024.
ATTENTION = TimeConstants.attention_share
COLUMNS = ("n_gpu", "tp", "pp", "cp", "dp", "mbs", "gas", "seq", "tokens_per_s_gpu")


def rows(folder: Path) -> pd.DataFrame:
    """Rows of the long sequences, shortest first."""
    table = pd.read_csv(folder / TABLE, comment="#")
    return table[table["container"] == SERIES].sort_values("seq")


def priced(model: CostModel, row: pd.Series) -> tuple[str, Prediction]:
    """A row with the least recomputation that is predicted to fit; with the most if none is."""
    given = {name: int(row[name]) for name in ("tp", "cp", "pp", "dp", "mbs", "gas")}
    shape = ModelConfig.model_validate({**LLAMA2_7B, "seq_length": int(row["seq"])})
    more = {"zero_stage": 1, "fp8": True, "sequence_parallel": given["tp"] > 1}
    each = {word: jobs({**given, **more, "recompute": n}, shape) for word, n in RECOMPUTE.items()}
    word = next((word for word, job in each.items() if model.fits(job)[0]), "full")
    return word, model.predict(each[word])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each length, and the errors of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, help="folder of measured tables")
    folder = parser.parse_args(arguments).truth
    try:
        measured = rows(folder)
    except OSError as error:
        parser.error(str(error))
    if missing := {*COLUMNS} - {*measured.columns}:
        parser.error(f"{folder / TABLE}: no column {', '.join(sorted(missing))}")
    shipped = cost_model(Cluster.named("dgx_h100"), MEGATRON_BRIDGE)
    older = replace(shipped, constants=replace(shipped.constants, attention_share=ATTENTION))
    print(
        "| tokens | GPUs | tp, cp, pp | recompute, assumed | predicted tokens/s/GPU | published ",
        end="",
    )
    print("| ratio | as shipped |\n|---|---|---|---|---|---|---|---|")
    ratios: list[tuple[float, float]] = []
    for _, row in measured.iterrows():
        speeds = []
        for model in (older, shipped):
            word, found = priced(model, row)
            speeds.append(float(found.tokens_per_second[0]) / int(row["n_gpu"]))
        old, new = (speed / row["tokens_per_s_gpu"] for speed in speeds)
        ratios.append((old, new))
        print(
            f"| {row['seq']:,} | {row['n_gpu']:,} | {row['tp']}, {row['cp']}, {row['pp']} | {word} "
            f"| {speeds[0]:,.0f} | {row['tokens_per_s_gpu']:,} | {old:.2f} | {new:.2f} |"
        )
    mean, largest = (100 * each(np.abs(np.array(ratios) - 1), axis=0) for each in (np.mean, np.max))
    print(f"\nmean error {mean[0]:.0f} %, largest {largest[0]:.0f} %; ", end="")
    print(f"as shipped {mean[1]:.0f} %, {largest[1]:.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
