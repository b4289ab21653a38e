"""Memory of LoRA, QLoRA and full fine-tuning: predicted against published.

    python -m benchmarks.cost_model.fine_tuning --truth FOLDER

Reads ``torchtune_finetune.csv`` (all sequences of one length) and the plain rows of
``l40s_peft_metamath.csv`` (its longest micro-batch is assumed to be full). Where torchtune's table
does not state recomputation, LoRA on one GPU has the least that is predicted to fit, and the other
methods recompute, as in torchtune's configurations. Nothing is fitted to either table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.cost.fitted import cost_model
from analysis.cost.memory import GIB, MemoryConstants, memory, reported
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from search_spaces.known import framework_named
from trainer.plan.jobs import ADAPTED_TARGETS, FULL, NONE, jobs
from trainer.plan.model import ModelConfig

TABLES = ("torchtune_finetune.csv", "l40s_peft_metamath.csv")
COMPILED = {"compiled_layers": True, "logits_bytes": 0.25}  # as in torchtune's record
TUNING = {"full": 0, "lora": 1, "qlora": 2}
RANK = 8  # of torchtune's configurations
GPU_GIB = {"RTX 4090": 24, "A6000": 48, "A100": 80}
LLAMA = {"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "linear_bias": False}
WIDTHS = ("num_layers", "hidden_size", "num_heads", "ffn_hidden_size")
SIZES = {
    "Llama-3.2-3B": (28, 3072, 24, 8192),
    "Llama-3.1-8B": (32, 4096, 32, 14336),
    "Llama-3.1-70B": (80, 8192, 64, 28672),
    "Llama-3.1-405B": (126, 16384, 128, 53248),
}


@dataclass(frozen=True)
class Row:
    name: str
    method: str
    predicted_gib: float
    measured_gib: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted_gib / self.measured_gib - 1


def llama(name: str, seq_length: int) -> ModelConfig:
    """The shape of a Llama 3 model; the 3B one ties embedding and output layer."""
    sizes = dict(zip(WIDTHS, SIZES[name], strict=True))
    more = {"vocab_size": 128256, "num_kv_heads": 8, "seq_length": seq_length}
    tied = name == "Llama-3.2-3B"
    return ModelConfig.model_validate({**LLAMA, **sizes, **more, "tied_embeddings": tied})


def peak_gib(shape: ModelConfig, habits: Framework, limit_gib: float, **job: Any) -> float:
    """The peak that a framework reports; by default with the least recomputation that fits."""
    said = [job.pop("recompute")] if "recompute" in job else [NONE, FULL]
    plain = {"tp": 1, "pp": 1, "gas": 1, "lora_rank": RANK}
    each = [jobs({**plain, **job, "recompute": one}, shape) for one in said]
    constants = MemoryConstants()
    fits = [one for one in each if memory(one, habits, constants).total[0] / GIB <= limit_gib]
    return float(reported((fits or each[-1:])[0], habits, constants)[0][0]) / GIB


def torchtune(path: Path) -> Iterator[Row]:
    """Rows whose settings the model has: no optimizer in the backward pass or in 8 bits."""
    habits = framework_named("torchtune").with_habits(**COMPILED)
    for _, row in pd.read_csv(path, comment="#").iterrows():
        shape, gpus = llama(row["model"], int(row["seq_length"])), int(row["gpus"])
        job = {"dp": gpus, "mbs": int(row["mbs"]), "zero_stage": 3 if gpus > 1 else 0}
        job["tuning"] = TUNING[row["method"]]
        if row["model"] == "Llama-3.2-3B" and row["method"] != "full":
            job |= {"recompute": FULL, "offload_activations": True}
        elif row["added"] in ("chunked cross entropy", "activation checkpointing"):
            job["recompute"] = NONE if row["added"].startswith("chunked") else FULL
        elif str(row["note"]).startswith("CPU offload"):  # its configuration recomputes, too
            job |= {"recompute": FULL, "offload_parameters": True}
        elif row["method"] == "full":
            continue
        elif row["method"] == "qlora" or gpus > 1:  # as torchtune's own configurations do
            job["recompute"] = FULL
        name = f"{row['model']}, {gpus} {row['gpu']}, {row['seq_length']} tokens"
        # The largest model's peak is stated in GB but must be in GiB like the others: its share of
        # the frozen weights, its checkpoints and one gathered layer alone are 45.5 GB.
        peak = peak_gib(shape, habits, GPU_GIB[row["gpu"]], **job)
        yield Row(name, row["method"], peak, row["peak_memory_gib"])


def offloaded(path: Path) -> tuple[float, float]:
    """Predicted and published tokens per second of the row whose states are on the host."""
    rows = pd.read_csv(path, comment="#")
    [row] = [row for _, row in rows.iterrows() if str(row["note"]).startswith("CPU offload")]
    job = {"tp": 1, "pp": 1, "gas": 1, "dp": int(row["gpus"]), "mbs": int(row["mbs"])}
    job |= {"zero_stage": 3, "recompute": FULL, "offload_parameters": True}
    shape = llama(row["model"], int(row["seq_length"]))
    model = cost_model(
        Cluster.named("dgx_a100"), framework_named("torchtune").with_habits(**COMPILED)
    )
    found = model.predict(jobs(job, shape)).tokens_per_second
    return float(found[0]), float(row["tokens_per_s"])


def peft(path: Path) -> Iterator[Row]:
    """Plain LoRA on queries and values; bf16 weights without autocast; 99th percentile peaks."""
    habits = framework_named("peft").with_habits(autocast_layers=False)
    shape = llama("Llama-3.2-3B", 768)
    for _, row in pd.read_csv(path, comment="#").iterrows():
        if row["name"] in ("rank32", "rank64"):
            job = {"lora_rank": int(row["rank"]), "lora_targets": ADAPTED_TARGETS["qv"]}
            job |= {"tuning": TUNING["lora"], "recompute": NONE, "dp": 1, "mbs": 4}
            peak = peak_gib(shape, habits, 48, zero_stage=0, **job)
            measured = row["reserved_p99_bytes"] / GIB
            yield Row(f"Llama-3.2-3B, PEFT {row['name']}", "lora", peak, measured)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each measured peak, and the errors by method."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, help="folder of measured tables")
    folder = parser.parse_args(arguments).truth
    try:
        rows = [*torchtune(folder / TABLES[0]), *peft(folder / TABLES[1])]
    except OSError as error:
        parser.error(str(error))
    print("| job | trains | predicted GiB | published | error |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.name} | {row.method} | {row.predicted_gib:.1f} | {row.measured_gib:.1f} "
            f"| {100 * row.error:+.0f} % |"
        )
    for method in TUNING:
        errors = np.abs([row.error for row in rows if row.method == method])
        print(f"\n{method}: median error {100 * np.median(errors):.0f} %, ", end="")
        print(f"largest {100 * errors.max():.0f} % of {len(errors)}", end="")
    told, published = offloaded(folder / TABLES[0])
    print(f"\n\nwith states on the host: {told:,.0f} tokens/s, published {published:,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
