"""Readers of the Megatron papers' tables and torchtitan's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.sweeps.record import Table, clusters_of, contradictory, drop, keys, number_column
from analysis.units import GIB
from benchmarks.published.gpt import gpt_jobs, one_cluster_table
from benchmarks.published.single import gpt_flops
from search_spaces.cluster import Cluster
from trainer.plan.jobs import FULL, SELECTIVE, Array, Jobs, jobs


def weak_scaling(path: Path, frame: pd.DataFrame) -> Table:
    """Narayanan et al. 2021, Table 1: interleaved where there is a pipeline."""
    layers, pp = number_column(frame, "layers"), number_column(frame, "pp")
    batch, mbs, dp = (number_column(frame, name) for name in ("gbs", "mbs", "dp"))
    j = gpt_jobs(frame, vpp=_least_interleave(layers, pp), gas=batch / (mbs * dp))
    made = one_cluster_table(
        path,
        j,
        Cluster.named("dgx_a100"),
        "megatron-lm-v3",
        step_time_s=gpt_flops(j)
        / (number_column(frame, "tflops_per_gpu") * 1e12 * j.layout.world_size),
        notes=("chunks a stage are not stated: the least that divide its layers are taken",),
    )
    return drop(made, contradictory(made, batch, number_column(frame, "n_gpu")))


def _least_interleave(layers: Array, pp: Array) -> Array:
    stage = layers / pp
    chunks = [2.0, 3.0, 5.0]
    divides = [np.mod(stage, v) == 0 for v in chunks]
    return np.where(pp == 1, 1.0, np.select(divides, chunks, 1.0))


def zero3(path: Path, frame: pd.DataFrame) -> Table:
    """Narayanan et al. 2021, Table 2: DeepSpeed's ZeRO-3 beside tensor and pipeline parallelism."""
    batch, mbs, dp = (number_column(frame, name) for name in ("gbs", "mbs", "dp"))
    stage = number_column(frame, "zero_stage")
    j = gpt_jobs(frame, gas=batch / (mbs * dp), zero_stage=stage)
    made = one_cluster_table(
        path,
        j,
        Cluster.named("dgx_a100"),
        np.where(stage == 3, "megatron-deepspeed-2022", "megatron-lm-v3"),
        step_time_s=gpt_flops(j)
        / (number_column(frame, "tflops_per_gpu") * 1e12 * j.layout.world_size),
        notes=("micro-batches of the pipelined rows are not stated: 1, and no interleaving",),
    )
    return drop(made, contradictory(made, batch, number_column(frame, "n_gpu")))


def korthikanti(path: Path, frame: pd.DataFrame) -> Table:
    """Korthikanti et al. 2022, Table 5: each model twice.

    All recomputed, and with sequence parallelism only the attention core.
    """
    twice = pd.concat([frame, frame], ignore_index=True)
    selective = np.arange(len(twice)) >= len(frame)
    batch, mbs, dp = (number_column(twice, name) for name in ("gbs", "mbs", "dp"))
    j = gpt_jobs(
        twice,
        vpp=number_column(twice, "virtual_pp"),
        gas=batch / (mbs * dp),
        recompute=np.where(selective, SELECTIVE, FULL),
        sequence_parallel=selective,
    )
    times = [
        number_column(frame, f"iter_s_{name}") for name in ("full_recompute", "seqpar_selective")
    ]
    made = one_cluster_table(
        path, j, Cluster.named("dgx_a100"), "megatron-lm-v3", step_time_s=np.concatenate(times)
    )
    return drop(made, contradictory(made, batch, number_column(twice, "n_gpu")))


# The public shapes of Llama 3.1: layers, hidden size, heads, kv heads, feed-forward size.
_LLAMA = {
    "8B": (32, 4096, 32, 8, 14336),
    "70B": (80, 8192, 64, 8, 28672),
    "405B": (126, 16384, 128, 8, 53248),
}
_LLAMA_VOCAB = 128256


def torchtitan(path: Path, frame: pd.DataFrame) -> Table:
    """torchtitan on Llama 3.1, in 16 bits and in FP8, which tables 2 and 4 to 6 have throughout."""
    names = [str(name).rsplit("-", 1)[-1] for name in frame["model"]]
    known = np.array([name in _LLAMA for name in names])
    shapes = np.array([_LLAMA.get(name, _LLAMA["8B"]) for name in names], dtype=float).T
    technique = frame["technique"]
    j = _llama(
        shapes,
        seq_length=number_column(frame, "seq"),
        tp=number_column(frame, "tp"),
        sequence_parallel=number_column(frame, "tp") > 1,
        cp=number_column(frame, "cp"),
        pp=number_column(frame, "pp"),
        # Two stages per rank where a schedule has several and none are stated.
        vpp=np.where(technique.str.contains("Interleaved"), 2, 1),
        dp=number_column(frame, "fsdp"),
        fp8=technique.str.contains("Float8|4D", regex=True).to_numpy(),
        # A pipeline splits the local batch into as many micro-batches as it has stages, unless
        # told (pipeline_parallel_microbatches; torchtitan until 2025).
        mbs=number_column(frame, "local_bs") / number_column(frame, "pp"),
        gas=number_column(frame, "pp"),
        zero_stage=np.where(number_column(frame, "pp") > 1, 2, 3),
        recompute=np.where(frame["act_ckpt"] == "full", FULL, SELECTIVE),
    )
    clusters, cluster = clusters_of(
        path,
        frame["gpu"],
        number_column(frame, "n_gpu"),
        np.ceil(number_column(frame, "n_gpu") / 8),
    )
    tokens_per_s = number_column(frame, "tokens_per_s_gpu") * number_column(frame, "n_gpu")
    made = one_cluster_table(
        path,
        j,
        next(iter(clusters.values())),
        "torchtitan",
        clusters=clusters,
        cluster=cluster,
        step_time_s=number_column(frame, "gbs") * j.model.seq_length / tokens_per_s,
        peak_bytes=number_column(frame, "mem_GiB") * GIB,
        landscape=keys(
            frame["model"], frame["gpu"], number_column(frame, "n_gpu"), j.model.seq_length
        ),
        campaign=keys(frame["gpu"]),
        memory_measure="torch",
        notes=(
            "rows with and without torch.compile or asynchronous TP are one configuration here",
        ),
    )
    reasons = {
        "shape not known": ~known,
        **contradictory(made, number_column(frame, "gbs"), number_column(frame, "n_gpu")),
    }
    return drop(made, reasons)


def _llama(shapes: Array, **columns: Any) -> Jobs:
    names = ("num_layers", "hidden_size", "num_heads", "kv_heads", "ffn_size")
    return jobs(
        {
            **dict(zip(names, shapes, strict=True)),
            "gated": True,
            "tied_embeddings": False,
            "vocab_size": _LLAMA_VOCAB,
            **columns,
        }
    )
