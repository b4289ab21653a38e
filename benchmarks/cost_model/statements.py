"""Figures that papers state of their best runs, with less detail than a table's row needs.

Parameters that a paper does not state give a set of candidates. A prediction takes the fastest one
that it expects to fit, as the paper's authors took the fastest that they found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.sweeps.gpus import cluster_of, with_network
from analysis.sweeps.record import number_column, read_csv
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from search_spaces.known import framework_named
from trainer.plan.flops import hardware_flops
from trainer.plan.formats import BLOCK, Format
from trainer.plan.jobs import FULL, NONE, SELECTIVE, Jobs, jobs, joined
from trainer.plan.placement import Placement, Topology
from trainer.plan.presets import Preset, place

from .peers import Fitted


@dataclass(frozen=True)
class Setup:
    """Candidates of one run.

    Attributes:
        jobs: the candidates.
        cluster, framework: on which they ran.
    """

    jobs: Jobs
    cluster: Cluster
    framework: Framework

    def best_tflops(self, fitted: Fitted) -> float:
        """Hardware TFLOP/s of a GPU: the highest among candidates that are predicted to fit."""
        found = fitted(self.jobs, self.cluster, self.framework)
        jobs = self.jobs
        flops = hardware_flops(jobs.model, jobs.global_batch, jobs.recompute_words)
        rate = flops / (found.step_time_s * self.jobs.layout.world_size) / 1e12
        return float(np.max(np.where(found.fits < 0.5, np.nan, rate), initial=-np.inf,
                            where=~(found.fits < 0.5)))  # fmt: skip


@dataclass(frozen=True)
class Statement:
    """One figure: TFLOP/s of a GPU, or the ratio of two setups' if there is ``over``."""

    source: str
    name: str
    published: float
    setup: Setup
    over: Setup | None = None

    def predicted(self, fitted: Fitted) -> float:
        """The predicted figure; nan where no candidate is predicted to fit."""
        value = self.setup.best_tflops(fitted)
        if self.over is not None:
            value /= self.over.best_tflops(fitted)
        return value if math.isfinite(value) else float("nan")


def candidates(shape: Mapping[str, Any], **choices: list[float]) -> Jobs:
    """All combinations of the choices for one shape that a trainer accepts."""
    rows = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    columns = {name: np.array([row[name] for row in rows], dtype=float) for name in choices}
    made = jobs({**shape, **columns})
    whole = (made.model.num_layers % made.layout.pp == 0) & (
        made.model.num_heads % made.layout.tp == 0
    )
    return made[whole & (made.layout.dp % 1 == 0) & (made.layout.mbs % 1 == 0)]


def gpt_shape(layers: float, hidden: float, heads: float, seq: float) -> dict[str, Any]:
    """A plain GPT with the vocabulary of the Megatron papers and full recomputation."""
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "kv_heads": heads,
        "ffn_size": 4 * hidden,
        "gated": False,
        "tied_embeddings": True,
        "vocab_size": 51200,
        "seq_length": seq,
        "recompute": FULL,
    }


def dash(path: Path, frame: pd.DataFrame) -> list[Statement]:
    """Dash et al. 2023, section V-B: one replica; flash attention, sequences of 2048 assumed."""
    habits = framework_named("megatron-deepspeed-2022").with_habits(flash_attention=True)
    made = []
    for _, row in frame.iterrows():
        known = [row["tp"], row["pp"], row["mbs"]]
        batch = float(row["gbs"].split("/")[0]) if row["gbs"] else 640.0
        tp, pp, mbs = ([float(value)] if value else [] for value in known)
        mbs = mbs or [1.0, 2.0, 4.0]
        shape = gpt_shape(*_sizes(row), 2048)
        parts = [
            candidates(
                shape, tp=tp or [1, 2, 4, 8], pp=pp or [1, 2, 4, 8, 16], mbs=[size],
                dp=[1.0, 2.0, 4.0, 8.0, 16.0], gas=[batch / size], zero_stage=[1.0],
            )
            for size in mbs
        ]  # fmt: skip
        setup = Setup(joined(parts), Cluster.named("frontier"), habits)
        made.append(Statement("Dash", row["model"], float(row["tflops_per_gcd"]), setup))
    return made


def axonn(path: Path, frame: pd.DataFrame) -> list[Statement]:
    """Singh et al. 2024, Table III: 16.8M tokens a batch, grids not stated.

    Candidates are the grids with Gy = 1 that divide that batch: Gx is tensor parallelism, Gz shards
    all states. Attention is a flash kernel where one existed: not in Perlmutter's PyTorch 1.13, nor
    in 2.2.1 for ROCm (section VI-B; pytorch/pytorch#112997).
    """
    made = []
    rates = number_column(frame, "tflops_per_gpu", path)
    for (_, row), rate in zip(frame.iterrows(), rates, strict=True):
        num_gpus, per_node = int(row["n_gpu"]), int(row["gpus_per_node"])
        shape = gpt_shape(*_sizes(row), 2048)
        grids = [
            {"tp": float(gx), "dp": float(num_gpus // gx), **dict.fromkeys(_SHARDS, float(gz)),
             "mbs": float(round(8192 * gx / num_gpus))}
            for gx in (2**n for n in range(6))
            for gz in (2**n for n in range(13))
            if num_gpus % (gx * gz) == 0 and 8192 * gx >= num_gpus
        ]  # fmt: skip
        columns = {name: np.array([grid[name] for grid in grids]) for name in grids[0]}
        j = jobs({**shape, **columns, "pp": 1, "gas": 1})
        j = j[j.model.num_heads % j.layout.tp == 0]
        cluster = {"Perlmutter": "perlmutter", "Frontier": "frontier"}.get(row["system"])
        facts = Cluster.named(cluster) if cluster else cluster_of(row["gpu"], per_node)
        habits = framework_named("axonn").with_habits(flash_attention=row["system"] == "Alps")
        setup = Setup(j, facts, habits)
        made.append(Statement("AxoNN", f"{row['system']} {row['model']}", float(rate), setup))
    return made


def _sizes(row: pd.Series[str]) -> tuple[float, float, float]:
    return float(row["layers"]), float(row["hidden"]), float(row["heads"])


_SHARDS = ("weight_shard", "gradient_shard", "optimizer_shard")


def zero_topo(path: Path, frame: pd.DataFrame) -> list[Statement]:
    """Xu et al. 2025, section VI: GPT-NeoX 20B on Frontier.

    The batch is not stated. Assumed are micro-batches of 2,048 tokens a GPU, as Wang et al. 2023
    use to compare ZeRO++ with ZeRO-3, and eight a step, as on slow links. Nor is recomputation.
    """
    facts = dict(zip(frame["fact"], frame["value"], strict=True))

    def gain(start: str) -> float:
        text = next(value for fact, value in facts.items() if fact.startswith(start))
        return 1 + float(text.strip("+%")) / 100

    def setup(preset: Preset, dp: int) -> Setup:
        # GPT-NeoX 20B: Black et al. 2022; its vocabulary is padded to 50432.
        shape = {**gpt_shape(44, 6144, 64, 2048), "vocab_size": 50432, "tied_embeddings": False}
        placed = place(preset, {}, dp, 1, Topology(8, 2), Format.FP16, Format.FP16)
        j = candidates(
            {**shape, **placement_columns(placed)},
            tp=[1], pp=[1], dp=[dp], gas=[8], mbs=[1], recompute=[NONE, SELECTIVE, FULL],
        )  # fmt: skip
        habits = framework_named("megatron-deepspeed-2022").with_habits(flash_attention=True)
        return Setup(j, Cluster.named("frontier"), habits)

    zero3, zero_pp, topo = (setup(preset, 384) for preset in ("zero3", "zero++", "zero_topo"))
    return [
        Statement("Xu", "ZeRO++ over ZeRO-3", gain("ZeRO++ vs ZeRO-3"), zero_pp, zero3),
        Statement("Xu", "ZeRO-topo over ZeRO++", gain("ZeRO-topo vs ZeRO++"), topo, zero_pp),
        Statement("Xu", "ZeRO-topo over ZeRO-3", gain("ZeRO-topo vs ZeRO-3"), topo, zero3),
        Statement(
            "Xu", "ZeRO-topo, 384 over 64 GCDs",
            float(facts["scaling efficiency at 384 GCD"]), topo, setup("zero_topo", 64),
        ),
    ]  # fmt: skip


# Layers, hidden size, heads, kv heads, feed-forward size, gated, vocabulary: the public shapes.
_TUNED = {
    "Llama-2-7B": (32, 4096, 32, 32, 11008, True, 32000),
    "Llama-2-13B": (40, 5120, 40, 40, 13824, True, 32000),
    "Llama-2-70B": (80, 8192, 64, 8, 28672, True, 32000),
    "Falcon-40B": (60, 8192, 128, 8, 32768, False, 65024),
}
_TUNED_NODES, _TUNED_TOKENS = 4, 8192  # neither is stated


def hpz(path: Path, frame: pd.DataFrame) -> list[Statement]:
    """Dai et al. 2024, Table 2: hpZ with qgZ over qgZ alone, eight A100 and 12.5 Gb/s a node.

    Number of nodes and batch are not stated; assumed are 4 nodes and 8,192 tokens a GPU.
    """
    cluster = with_network(Cluster.named("dgx_a100"), 1, 12.5 / 8)
    made = []
    for _, row in frame.iterrows():
        if row["model"] not in _TUNED:
            continue
        layers, hidden, heads, kv_heads, ffn, gated, vocab = _TUNED[row["model"]]
        shape = {
            **gpt_shape(layers, hidden, heads, 2048),
            "kv_heads": kv_heads,
            "ffn_size": ffn,
            "gated": gated,
            "vocab_size": vocab,
            "tied_embeddings": False,
        }
        dp = 8 * _TUNED_NODES

        def setup(preset: Preset, shape: dict[str, Any] = shape, dp: int = dp) -> Setup:
            wishes = {"quantize_gradients": True}
            placed = place(preset, wishes, dp, 1, Topology(8), Format.BF16, Format.BF16)
            j = candidates(
                {**shape, **placement_columns(placed)},
                tp=[1], pp=[1], dp=[dp], gas=[1], mbs=[_TUNED_TOKENS / 2048],
            )  # fmt: skip
            return Setup(
                j,
                cluster,
                framework_named("megatron-deepspeed-2022").with_habits(flash_attention=True),
            )

        ratio = float(row["qgz_hpz_fixed"]) / float(row["qgz_only"])
        made.append(Statement("Dai", row["model"], ratio, setup("hpz"), setup("zero3")))
    return made


def placement_columns(placed: Placement) -> dict[str, float]:
    """A placement as columns of jobs."""

    def bits(form: Format) -> float:
        return form.num_bytes(BLOCK) * 8 / BLOCK

    return {
        "weight_shard": placed.weight_shard,
        "gradient_shard": placed.gradient_shard,
        "optimizer_shard": placed.optimizer_shard,
        "secondary_shard": placed.secondary_shard,
        "gather_bits": bits(placed.gather_format),
        "reduce_bits": bits(placed.reduce_format),
        "secondary_bits": bits(placed.secondary_format) if placed.secondary_shard else 0,
        # As published: before each backward pass.
        "renews_copy": placed.secondary_shard > 0,
    }


FORMS: list[tuple[set[str], Callable[[Path, pd.DataFrame], list[Statement]]]] = [
    ({"tflops_per_gcd", "tp", "pp"}, dash),
    ({"total_pflops", "pct_empirical"}, axonn),
    ({"fact", "value"}, zero_topo),
    ({"qgz_only", "qgz_hpz_fixed"}, hpz),
]


def read_statements(path: Path) -> list[Statement]:
    """The figures in a file; none if its columns have no known form."""
    frame = read_csv(path)
    for needed, reader in FORMS:
        if needed <= set(frame.columns):
            return reader(path, frame)
    return []
