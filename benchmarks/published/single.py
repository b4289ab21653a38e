"""Readers of single publications' tables. What a publication leaves open is a table's note."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.sweeps.gpus import cluster_of
from analysis.sweeps.read import read_sweep
from analysis.sweeps.record import (
    Table,
    clusters_of,
    contradictory,
    drop,
    keys,
    number_column,
    shape_keys,
)
from analysis.units import GIB
from benchmarks.published.gpt import gpt_jobs, one_cluster_table
from search_spaces.cluster import Cluster
from trainer.plan.flops import hardware_flops
from trainer.plan.jobs import FULL, NONE, Array, Jobs, Mask


def gpt_flops(j: Jobs) -> Array:
    """FLOPs of a step with full recomputation: equation 3 of Narayanan et al. 2021."""
    s, h, n = j.model.seq_length, j.model.hidden_size, j.model.num_layers
    whole = 1 + s / (6 * h) + j.model.vocab_size / (16 * n * h)
    return 96 * j.global_batch * s * n * h**2 * whole


def bloom(path: Path, frame: pd.DataFrame) -> Table:
    """BLOOM on Jean Zay: three campaigns, the third with another optimizer."""
    heads = number_column(frame, "heads")
    hidden = number_column(frame, "hidden")
    for size in np.unique(hidden[np.isnan(heads)]):
        stated = heads[(hidden == size) & ~np.isnan(heads)]
        values, counts = np.unique(stated, return_counts=True)
        heads[(hidden == size) & np.isnan(heads)] = values[np.argmax(counts)]
    fp32_gradients = frame["precision"].str.contains("fp32 grad").to_numpy()
    # Later runs partition by transformer|embedding, with two layers less for an even split.
    layers, pp = number_column(frame, "layers"), number_column(frame, "pp")
    ends = np.where((np.mod(layers, pp) != 0) & (np.mod(layers + 2, pp) == 0), 1, 0)
    j = gpt_jobs(
        frame,
        num_heads=heads,
        zero_stage=number_column(frame, "zero_stage"),
        account_for_embedding=ends,
        account_for_loss=ends,
    )
    before = (frame["date"] < "2022-02-25").to_numpy()
    campaign = np.where(fp32_gradients, "fp32 gradients", np.where(before, "before", "after"))
    peak_bytes = number_column(frame, "mem_max_GB") * GIB
    slips = _falls_with_micro_batch(j, peak_bytes)
    peak_bytes[slips] = np.nan
    notes = ["heads that are not stated are those most frequent at the same hidden size"]
    if slips.any():
        notes.append(f"{slips.sum()} memory figure(s) left out: above that of a larger micro-batch")
    made = one_cluster_table(
        path,
        j,
        Cluster.named("jean_zay_a100"),
        np.where(fp32_gradients, "deepspeed-bf16-2022", "megatron-deepspeed-2022"),
        step_time_s=number_column(frame, "sec_per_iter"),
        peak_bytes=peak_bytes,
        failed=number_column(frame, "oom") == 1,
        landscape=keys(shape_keys(j), j.layout.world_size, j.global_batch, campaign),
        campaign=campaign,
        memory_measure="nvidia-smi",
        notes=tuple(notes),
    )
    return drop(
        made, contradictory(made, number_column(frame, "gbs"), number_column(frame, "n_gpu"))
    )


def _falls_with_micro_batch(j: Jobs, peak_bytes: Array) -> Mask:
    """Rows that are said to need over 10 % more than the same with a larger micro-batch."""
    columns = (
        j.model.num_layers,
        j.model.hidden_size,
        j.layout.tp,
        j.layout.pp,
        j.layout.dp,
        j.placement.zero_stage,
    )
    same = np.all([np.equal.outer(c, c) for c in columns], axis=0)
    larger = same & (j.layout.mbs[:, None] < j.layout.mbs[None, :])
    with np.errstate(invalid="ignore"):
        more = peak_bytes[:, None] > 1.1 * peak_bytes[None, :]
    return np.asarray(np.any(larger & more, axis=1))


def v100(path: Path, frame: pd.DataFrame) -> Table:
    """BigScience's GPT-2 experiments on four V100 a node."""
    place = frame["section"] + " " + frame["subsection"]
    offloaded = place.str.contains("offload", case=False) & ~frame["note"].str.contains(
        "Opt Offl=N; Par Offl=N"
    )
    # The DeepSpeed scripts of that branch keep layers' inputs in the host's memory, split over tp.
    in_host = place.str.contains("ZeRO (old branch)", regex=False)
    unknown = np.isnan(number_column(frame, "layers")) | np.isnan(number_column(frame, "mbs"))
    stage = number_column(frame, "zero_stage")
    whole = frame[~unknown]
    on_host = offloaded[~unknown].to_numpy()
    j = gpt_jobs(
        whole,
        zero_stage=np.where(np.isnan(stage), 0, stage)[~unknown],
        offload_optimizer=on_host,
        offload_parameters=on_host,
        offload_activations=in_host[~unknown].to_numpy(),
        partition_activations=in_host[~unknown].to_numpy(),
    )
    memory = whole["note"].str.extract(r"GPU M=(\d+)GB", expand=False).astype(float).to_numpy()
    small = whole["gpu"].str.contains("16GB").to_numpy()
    large_machine, small_machine = (cluster_of(f"V100-{size}GB") for size in (32, 16))
    cluster = np.where(small, small_machine.name, large_machine.name)
    # Transformers' Trainer on DeepSpeed 0.3.16 (gpt2-hf-ds/hf_ds_gpt2_perf_n16.slurm): two buckets
    # of h^2 elements, a stream of its own for reductions, and a loss in 16 bits, which holds three
    # copies of the logits: itself, its logarithm's and their gradients in turn.
    of_trainer = whole["framework"].str.startswith("HF").to_numpy()
    bucket = number_column(whole, "hidden") ** 2
    own = {"fixed_buffer_bytes": 4 * bucket, "reduced_apart": bucket}
    own |= {"logits_bytes": 0, "logit_copies": 3}
    made = one_cluster_table(
        path,
        j,
        large_machine,
        np.where(whole["framework"] == "Megatron-LM", "megatron-lm-v3", "megatron-deepspeed-2022"),
        clusters={m.name: m for m in (large_machine, small_machine)},
        cluster=cluster,
        step_time_s=number_column(whole, "sec_per_iter"),
        peak_bytes=memory * GIB,
        failed=number_column(whole, "oom") == 1,
        landscape=keys(shape_keys(j), cluster, j.layout.world_size),
        campaign=keys(shape_keys(j), cluster, j.layout.world_size),
        memory_measure="nvidia-smi",
        habits={name: np.where(of_trainer, value, None) for name, value in own.items()},
        left_out={"shape or micro-batch not stated": int(unknown.sum())},
        notes=("the network varied by 40 % between days (its source says)",),
    )
    checked = whole["tflops_check"].isin(["ok", ""])
    reasons = {
        "time and TFLOPS contradict": ~checked.to_numpy(),
        **contradictory(made, number_column(whole, "gbs"), number_column(whole, "n_gpu")),
    }
    return drop(made, reasons)


def mosaic(path: Path, frame: pd.DataFrame) -> Table:
    """MosaicML's FSDP runs: tp = pp = 1."""
    full = frame["sharding"] == "FULL_SHARD"
    j = gpt_jobs(
        frame,
        tp=1,
        pp=1,
        dp=number_column(frame, "n_gpu"),
        zero_stage=np.where(full, 3, 2),
        recompute=np.where(frame["act_ckpt"] == "True", FULL, NONE),
    )
    num_gpus = number_column(frame, "n_gpu")
    clusters, cluster = clusters_of(path, frame["gpu"], num_gpus, np.ceil(num_gpus / 8))
    landscape = keys(frame["model"], frame["gpu"], num_gpus, j.model.seq_length)
    made = one_cluster_table(
        path,
        j,
        next(iter(clusters.values())),
        "composer",
        clusters=clusters,
        cluster=cluster,
        step_time_s=number_column(frame, "gbs")
        * j.model.seq_length
        / number_column(frame, "tokens_per_s"),
        landscape=landscape,
        campaign=keys(frame["gpu"]),
        notes=("tied embeddings and flash attention as in the models' own files",),
    )
    reasons = {
        "not 16-bit": ~frame["precision"].isin(["bf16", "amp_bf16"]).to_numpy(),
        "activations are offloaded": (frame["act_offload"] == "True").to_numpy(),
        **contradictory(made, number_column(frame, "gbs"), num_gpus),
    }
    return drop(made, reasons)


def trl(path: Path, frame: pd.DataFrame) -> Table:
    """Fine-tuning with TRL on H100 (huggingface/trl, branch benchmark-sft-moe).

    Where several ranks share a sequence, the table divides the printed rate by their number, since
    the first campaign counted a token on each of them. Later campaigns count it once: the source
    states the time of one of their runs (4B, DeepSpeed, sp 2, FA3: 57.5 s for 20 steps), which is
    that of the printed rate. So a campaign (one model in one framework with one loss) keeps the
    divided rates only if by the printed ones a run would exceed its GPUs' peak.
    """
    table = read_sweep(path, frame)
    printed_s = read_sweep(path, frame.assign(tokens_per_second=frame["tok_s_printed"])).step_time_s
    j = table.jobs
    # Causal kernels compute half of the scores, in each of four passes.
    scores = 2 * j.global_batch * j.model.num_layers * 4 * j.model.seq_length**2
    flops = hardware_flops(j.model, j.global_batch, j.recompute_words)
    flops = flops - scores * j.model.attention_size
    peaks = {key: cluster.peak_bf16_tflops * 1e12 for key, cluster in table.clusters.items()}
    peak = np.array([peaks[str(key)] for key in table.cluster])
    campaign = keys(table.framework, table.model, j.options.chunked_loss)
    exceeds = flops / printed_s / j.layout.world_size > peak
    counted_often = np.isin(campaign, campaign[exceeds])
    return replace(table, step_time_s=np.where(counted_often, table.step_time_s, printed_s))
