"""Readers of tables of tuned runs on recent GPUs: dense models and mixtures, in 16 and 8 bits.

All are of Megatron Core under NVIDIA's recipes (NeMo, Megatron-Bridge, MLPerf) or AMD's: one point
for each model and machine. Rows in 4 bits, of fine-tuning, and under FSDP are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.sweeps.record import (
    Keys,
    Table,
    clusters_of,
    contradictory,
    drop,
    keys,
    number_column,
)
from benchmarks.published.gpt import one_cluster_table
from search_spaces.language.schema import ModelFile
from search_spaces.shipped import read_named
from trainer.plan.jobs import (
    BY_HABIT,
    DISPATCHERS,
    GRAPHS,
    NO_GRAPHS,
    NO_MODULES,
    NONE,
    SELECTIVE,
    Array,
    Mask,
    jobs,
)
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Latent, Mixture

FRAMEWORK = "megatron-bridge"
RECIPES = Path(__file__).with_name("megatron_bridge_recipes.csv")
FP8 = ("FP8", "FP8-CS", "FP8-MX", "MXFP8")
_GPU = r"(GB300|GB200|B300|B200|H200|H100|MI355X|MI350X|MI300X)"
_MIXTURES = {
    "DeepSeekV3": "deepseek_v3",
    "GPT OSS 120B": "gpt_oss_120b",
    "Qwen3_235B_a22B": "qwen3_235b_a22b",
    "Qwen3_30B_a3B": "qwen3_30b_a3b",
}
_DEGREES = ("tp", "pp", "cp", "ep", "mbs")
_CHUNKS_OF_GPT3 = 6.0  # where a row does not say: those of the round after


def dgxc(path: Path, frame: pd.DataFrame) -> Table:
    """NVIDIA's benchmark recipes: one configuration of each model at many scales.

    Of 24.11.1 and 25.02 they are NeMo 1's (dgxc-benchmarking at 35a9aec and 8f5cbb3, and NeMo's
    ``megatron_base_model.py``). Its ``distributed_fused_adam`` keeps of a master weight only the 16
    bits that the weight lacks, unless weights are in 8 bits (``fp8_params``, which GPT-3's recipe
    always has). Nemotron-4 340B's states are in bf16, the weights their own masters, and it
    recomputes attention.
    """
    model, first = frame["model"], frame["release"] == "24.11.1"
    nemo = first | (frame["release"] == "25.02")
    large, bf16 = nemo & (model == "Nemotron4-340B"), frame["precision"] == "BF16"
    other = model.str.startswith("GPT3") | ~first & (model == "Nemotron4-15B")  # Megatron Core's
    cases = [large & bf16, large, nemo & bf16 & ~other]
    habits = {
        "master_bytes": np.select(cases, [0, 2, 2], np.array(None, dtype=object)),
        "moment_bytes": np.where(large, 2, None),
    }
    again, step_time_s = np.where(large, SELECTIVE, NONE), number_column(frame, "iter_s")
    return _dense(path, frame, step_time_s, frame["release"], again, habits)


def mlperf(path: Path, frame: pd.DataFrame) -> Table:
    """MLPerf Training submissions of language models."""
    return _dense(path, frame, number_column(frame, "iter_s"), frame["round"])


def bridge(path: Path, frame: pd.DataFrame) -> Table:
    """Megatron-Bridge on Llama 3."""
    tokens = number_column(frame, "gbs") * number_column(frame, "seq")
    rate = number_column(frame, "tokens_per_s_gpu") * number_column(frame, "n_gpu")
    return _dense(path, frame, tokens / rate, frame["container"])


def _dense(
    path: Path,
    frame: pd.DataFrame,
    step_time_s: Array,
    campaign: Any,
    recompute: Any = NONE,
    habits: Mapping[str, Any] | None = None,
) -> Table:
    columns = {
        "num_layers": "layers",
        "hidden_size": "hidden",
        "num_heads": "heads",
        "kv_heads": "kv_heads",
        "ffn_size": "ffn",
        "vocab_size": "vocab",
        "seq_length": "seq",
    }
    shape: dict[str, Any] = {key: number_column(frame, name) for key, name in columns.items()}
    llama = frame["model"].str.upper().str.contains("LLAMA").to_numpy()
    shape |= {"gated": llama, "tied_embeddings": ~llama, "recompute": recompute}
    return _table(path, frame, shape, step_time_s, keys(campaign), {}, habits or {})


def mixtures(path: Path, frame: pd.DataFrame) -> Table:
    """Megatron-Bridge on mixtures of experts whose shapes are public and shipped."""
    degrees = {name: pd.to_numeric(frame[name], errors="coerce") for name in _DEGREES}
    several = np.any([column.isna() for column in degrees.values()], axis=0)
    frame = frame.assign(**{name: column.fillna(1).astype(str) for name, column in degrees.items()})
    rate = pd.to_numeric(frame["tokens_per_s_gpu"], errors="coerce").to_numpy(float)
    tokens = number_column(frame, "gbs") * number_column(frame, "seq")
    names = [
        next((m for start, m in _MIXTURES.items() if str(model).startswith(start)), "")
        for model in frame["model"]
    ]
    models = {name: _model(name) for name in _MIXTURES.values()}
    rows = [models.get(name) or models["qwen3_30b_a3b"] for name in names]

    def column(key: str) -> Array:
        return np.array([getattr(model, key) for model in rows], dtype=float)

    def few(key: str, kind: type[Any]) -> Any:
        records = [getattr(model, key) or [0.0] * len(kind._fields) for model in rows]
        return kind(*np.array(records, dtype=float).T)

    shape: dict[str, Any] = {
        key: column(key)
        for key in (
            *("num_layers", "hidden_size", "num_heads", "attention_size", "kv_heads"),
            *("ffn_size", "gated", "vocab_size", "tied_embeddings"),
        )
    }
    seq = number_column(frame, "seq")
    shape |= {"seq_length": seq, "attended": column("attended") / column("seq_length") * seq}
    shape |= {"mixture": few("mixture", Mixture), "latent": few("latent", Latent)}
    unknown = {
        "shape not known": np.array([not name for name in names]),
        "tokens are dropped": frame["model"].str.contains("tokendrop").to_numpy(),
        "several recipes in one row": several | np.isnan(rate),
        "slow by a fault of the release, as its notes say": (
            frame["model_tflops_per_gpu"].astype(str).str.contains("[^", regex=False).to_numpy()
        ),
    }
    step_time_s = tokens / (rate * number_column(frame, "n_gpu"))
    # DeepSeek-V3 is trained with a module that predicts a second token: a layer more.
    deeper = np.array([name == "deepseek_v3" for name in names])
    deeper &= ~frame["model"].str.contains("w/o MTP", regex=False).to_numpy()
    shape["num_layers"] = shape["num_layers"] + deeper
    shape |= _recipes(frame)
    return _table(path, frame, shape, step_time_s, keys(frame["container"]), unknown, {})


def _recipes(frame: pd.DataFrame) -> dict[str, Any]:
    """Settings of the rows' published recipes besides their degrees; nothing for unknown ones."""
    key = ["container", "model", "gpu", "precision"]
    rows = frame.assign(gpu=frame["system"].str.extract(_GPU, expand=False))
    known = rows[key].merge(pd.read_csv(RECIPES, comment="#", dtype=str), "left", on=key)
    modules = known["recompute_modules"].fillna(NO_MODULES).str.replace(" ", ",").to_numpy(str)
    return {
        "recompute": np.where(modules != NO_MODULES, SELECTIVE, NONE),
        "recompute_modules": modules,
        "dispatcher": known["moe_token_dispatcher"].map(DISPATCHERS).fillna(BY_HABIT).to_numpy(),
        "overlaps_dispatch": (known["moe_comm_overlap"] == "yes").to_numpy(),
        "graphs": known["cuda_graphs"].map(GRAPHS).fillna(NO_GRAPHS).to_numpy(),
    }


def _model(name: str) -> ModelConfig:
    return read_named(ModelFile, "model", name).config()


def _numbers(frame: pd.DataFrame, name: str, missing: float) -> Array:
    if name not in frame:
        return np.full(len(frame), missing)
    return pd.to_numeric(frame[name], errors="coerce").fillna(missing).to_numpy(float)


def _table(
    path: Path,
    frame: pd.DataFrame,
    shape: Mapping[str, Any],
    step_time_s: Array,
    campaign: Keys,
    reasons: Mapping[str, Mask],
    habits: Mapping[str, Any],
) -> Table:
    """All rows, then without those that no price is meant for."""
    tp, pp, mbs = (number_column(frame, name) for name in ("tp", "pp", "mbs"))
    num_gpus, batch = number_column(frame, "n_gpu"), number_column(frame, "gbs")
    cp, ep = _numbers(frame, "cp", 1), _numbers(frame, "ep", 1)
    gpt3 = frame["model"].str.startswith("GPT3").to_numpy() & (pp > 1)
    vpp = _numbers(frame, "vp", np.nan)
    vpp = np.where(np.isnan(vpp), np.where(gpt3, _CHUNKS_OF_GPT3, 1.0), vpp)
    dp = num_gpus / (tp * cp * pp)
    precision = frame["precision"].str.upper()
    gas = batch / (mbs * dp)
    vpp = np.where(pp > 1, vpp, 1)
    # Where layers alone cannot be dealt out, recipes count both ends (llama31_405b's settings
    # account_for_embedding_in_pipeline_split and account_for_loss_in_pipeline_split).
    layers, chunks = np.asarray(shape["num_layers"]), pp * vpp
    ends = ((layers % chunks > 0) & ((layers + 2) % chunks == 0)).astype(float)
    j = jobs(
        {
            **shape,
            "tp": tp,
            "cp": cp,
            "pp": pp,
            "dp": dp,
            "mbs": mbs,
            "gas": gas,
            "vpp": vpp,
            "account_for_embedding": ends,
            "account_for_loss": ends,
            "ep": np.minimum(ep, num_gpus),
            # Recipes split no expert's matrices where there are enough ranks to deal them out to.
            "etp": np.where(ep > 1, 1, tp),
            "zero_stage": 1,
            "sequence_parallel": tp > 1,
            "fp8": precision.isin(FP8).to_numpy(),
        }
    )
    gpus = frame["gpu" if "gpu" in frame else "system"].str.extract(_GPU, expand=False)
    clusters, cluster = clusters_of(path, gpus, num_gpus, np.ones(len(frame)))
    tasks = frame["task"] if "task" in frame else pd.Series(["pretrain"] * len(frame))
    made = one_cluster_table(
        path,
        j,
        next(iter(clusters.values())),
        FRAMEWORK,
        clusters=clusters,
        cluster=cluster,
        step_time_s=step_time_s,
        landscape=np.array([f"{path.stem} {row}" for row in range(len(frame))]),
        campaign=campaign,
        habits=habits,
        notes=("recomputation that no recipe states: none", "balanced routers, no token dropped"),
    )
    known = precision.isin(["BF16", *FP8]).to_numpy()
    return drop(
        made,
        {
            **reasons,
            "in 4 bits, or that may be": ~known,
            "fine-tuning": ~tasks.str.lower().str.startswith("pre").to_numpy(),
            "FSDP": _numbers(frame, "fsdp", 0) > 0,
            **contradictory(made, batch, num_gpus),
        },
    )
