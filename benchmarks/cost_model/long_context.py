"""Context parallelism from 4 thousand to a million tokens: predicted against published.

    python -m benchmarks.cost_model.long_context --truth FOLDER

Reads ``h100_nemo_performance_summary.csv``: Llama 2 7B in FP8 on 4 to 1,024 H100. The publication
does not say what is recomputed. Each row is priced as shipped, without recomputation if that is
predicted to fit, else with the first kind that does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.cost.fitted import cost_model
from analysis.cost.jobs import RECOMPUTE, jobs
from analysis.cost.model import CostModel, Prediction
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
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
COLUMNS = ("n_gpu", "tp", "pp", "cp", "dp", "mbs", "gas", "seq", "tokens_per_s_gpu")


def rows(folder: Path) -> pd.DataFrame:
    """Rows of the long sequences, shortest first."""
    table = pd.read_csv(folder / TABLE, comment="#")
    return table[table["container"] == SERIES].sort_values("seq")


def priced(model: CostModel, row: pd.Series) -> tuple[str, Prediction]:
    """With the least recomputation that is predicted to fit; the most if none is."""
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
    model = cost_model(Cluster.named("dgx_h100"), MEGATRON_BRIDGE)
    print("| tokens | GPUs | tp, cp, pp | recompute, assumed ", end="")
    print("| predicted tokens/s/GPU | published | ratio |\n|---|---|---|---|---|---|---|")
    ratios = []
    for _, row in measured.iterrows():
        word, found = priced(model, row)
        speed = float(found.tokens_per_second[0]) / int(row["n_gpu"])
        ratios.append(speed / row["tokens_per_s_gpu"])
        print(
            f"| {row['seq']:,} | {row['n_gpu']:,} | {row['tp']}, {row['cp']}, {row['pp']} | {word} "
            f"| {speed:,.0f} | {row['tokens_per_s_gpu']:,} | {ratios[-1]:.2f} |"
        )
    errors = np.abs(np.array(ratios) - 1)
    shape = np.corrcoef(np.log(ratios), np.log(measured["seq"]))[0, 1]
    print(f"\nmean error {100 * errors.mean():.0f} %, largest {100 * errors.max():.0f} %; ", end="")
    print(f"correlation of the error with the length {shape:+.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
