"""Predictors under one protocol: meshtune's cost model and others."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from analysis.cost.fitted import cost_model
from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from analysis.sweeps.record import Table
from benchmarks.cost_model.failures import not_memory
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from trainer.plan.flops import hardware_flops
from trainer.plan.jobs import Array, Jobs

from .between_models import fitted_to, shapes
from .folds import Questions
from .transfer import parts_of, transferred

FEW_ROWS = 16  # of a calibration


@dataclass(frozen=True)
class Predicted:
    """Columns of shape (n,); nan where nothing is predicted.

    Attributes:
        step_time_s, peak_bytes: of a job.
        fits: probability that it runs.
        promised_s: step time by which jobs are ranked.
        low_s, high_s: ends of the 95 % interval of the step time.
    """

    step_time_s: Array
    peak_bytes: Array
    fits: Array
    promised_s: Array
    low_s: Array
    high_s: Array


Fitted = Callable[[Jobs, Cluster, Framework], Predicted]


class Predictor(Protocol):
    """Learns from tables, then predicts jobs of one machine and framework.

    Attributes:
        name: in the report.
        learns: whether its predictions depend on the tables.
    """

    name: str
    learns: bool

    def fit(self, train: Sequence[Table]) -> Fitted: ...


def predict(fitted: Fitted, asked: Questions) -> Predicted:
    """Predict jobs of several machines and frameworks."""
    columns = {f.name: np.full(len(asked), np.nan) for f in fields(Predicted)}
    for cluster, habits, rows in asked.alike():
        part = fitted(asked.jobs[rows], cluster, habits)
        for column, values in columns.items():
            values[rows] = getattr(part, column)
    return Predicted(**columns)


class Meshtune:
    """The cost model, calibrated with the tables' rows of the same machine and framework.

    It uses the rows of the first table that has any. Where they are few, like a search's first
    trials, it first learns from those of the next table. A failure is evidence of a lack of memory
    unless a run of the table that needs at least as much contradicts it. Habits that rows state
    hold for what is asked; all rows are learnt from under those of the rows asked about.
    """

    name = "meshtune"
    learns = True

    def fit(self, train: Sequence[Table]) -> Fitted:
        models: dict[tuple[str, str], CostModel] = {}

        def fitted(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
            key = (cluster.name, repr(habits))
            if key not in models:
                models[key] = self._model(train, cluster, habits, {*shapes(jobs)})
            return _answer(models[key], jobs)

        return fitted

    def _model(
        self, train: Sequence[Table], cluster: Cluster, habits: Framework, asked: set[Any]
    ) -> CostModel:
        model = CostModel(cluster, habits)
        parts = [t[(t.cluster == cluster.name) & (t.framework == habits.name)] for t in train]
        parts = [part for part in parts if len(part)]
        used = parts[:2] if parts and len(parts[0]) <= FEW_ROWS else parts[:1]
        for rows in reversed(used):
            lack = rows.failed & ~not_memory(rows)
            measurements = Measurements(rows.jobs, rows.step_time_s, rows.peak_bytes, lack)
            seen = bool(asked & {*shapes(rows.jobs)})
            model = model.calibrated(measurements) if seen else fitted_to(measurements, model)
        return replace(model, foreign=not any(asked & {*shapes(rows.jobs)} for rows in used))


def _answer(model: CostModel, jobs: Jobs) -> Predicted:
    found = model.predict(jobs)
    # Tables state the peak that the framework prints, which differs from the least memory needed.
    peak_bytes = model.memory.peak_bytes(jobs, model.framework)
    return Predicted(
        found.step_time_s, peak_bytes, found.fits, found.promised_s, *found.interval_s()
    )


class Transfer:
    """The cost model with the framework's and the GPU's constants from other tables.

    A search on a new machine starts like this.
    """

    name = Meshtune.name
    learns = True

    def fit(self, train: Sequence[Table]) -> Fitted:
        parts, known = parts_of(train), dict[tuple[str, str], CostModel]()

        def fitted(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
            key = (cluster.name, repr(habits))
            if key not in known:
                constants = transferred(parts, cluster, habits)
                known[key] = CostModel(cluster, habits, constants)
            return _answer(known[key], jobs)

        return fitted


class Shipped:
    """The cost model as a search starts with it."""

    name = Meshtune.name
    learns = True

    def fit(self, train: Sequence[Table]) -> Fitted:
        def fitted(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
            return _answer(cost_model(cluster, habits), jobs)

        return fitted


class FlopsAndBubble:
    """FLOPs at 45 % of the peak, and the pipeline's bubble; no memory."""

    name = "flops and bubble"
    learns = False

    def fit(self, train: Sequence[Table]) -> Fitted:
        def fitted(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
            rate = 0.45 * cluster.peak_bf16_tflops * 1e12
            bubble = (jobs.layout.pp - 1) / (jobs.layout.gas * jobs.layout.vpp)
            flops = hardware_flops(jobs.model, jobs.global_batch, jobs.recompute_words)
            time_s = flops / (rate * jobs.layout.world_size) * (1 + bubble)
            nothing = np.full(len(jobs), np.nan)
            return Predicted(time_s, nothing, nothing, time_s, nothing, nothing)

        return fitted


class LlmAnalysis:
    """The package llm-analysis, at half of the peak, as its own notes advise.

    Its GPU is given so much memory that it never refuses a job; a job fits if the memory that it
    predicts is within the device's. It counts two matrices in a feed-forward part: a gated one,
    which has three, is passed as 1.5 times as wide.
    """

    name = "llm-analysis"
    learns = False
    _UNLIMITED_GB = 1e6

    def __init__(self) -> None:
        self.version = importlib.metadata.version("llm-analysis")
        # It logs every figure of every job, and warns at import about models that it lacks.
        logging.disable(logging.WARNING)
        try:
            self._analysis: Any = importlib.import_module("llm_analysis.analysis")
            self._config: Any = importlib.import_module("llm_analysis.config")
        finally:
            logging.disable(logging.NOTSET)

    def fit(self, train: Sequence[Table]) -> Fitted:
        def fitted(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
            logging.disable(logging.WARNING)
            try:
                rows = [self._one(jobs[i : i + 1], cluster, habits) for i in range(len(jobs))]
            finally:
                logging.disable(logging.NOTSET)
            time_s, peak_bytes = np.array(rows, dtype=float).reshape(-1, 2).T
            fits = np.where(peak_bytes <= cluster.memory_bytes, 1.0, 0.0)
            nothing = np.full(len(jobs), np.nan)
            fits = np.where(np.isnan(peak_bytes), np.nan, fits)
            return Predicted(time_s, peak_bytes, fits, time_s, nothing, nothing)

        return fitted

    def _one(self, job: Jobs, cluster: Cluster, habits: Framework) -> tuple[float, float]:
        """Step time and peak memory; nan where the package cannot express the job."""
        n = {name: int(column[0]) for name, column in job.columns().items()}
        a, c = self._analysis, self._config
        ffn = n["ffn_size"] * (1.5 if n["gated"] else 1)
        model = c.ModelConfig(
            name="job",
            num_layers=n["num_layers"],
            n_head=n["num_heads"],
            hidden_dim=n["hidden_size"],
            vocab_size=n["vocab_size"],
            max_seq_len=n["seq_length"],
            num_key_value_heads=n["kv_heads"],
            ffn_embed_dim=ffn,
            expansion_ratio=ffn / n["hidden_size"],
        )
        gpu = c.GPUConfig(
            name="gpu",
            mem_per_GPU_in_GB=self._UNLIMITED_GB,
            hbm_bandwidth_in_GB_per_sec=cluster.memory_gb_per_s or 1.0,
            intra_node_bandwidth_in_GB_per_sec=cluster.links[-1].gb_per_s if cluster.links else 1.0,
            intra_node_min_message_latency=8e-6,
            peak_fp16_TFLOPS=cluster.peak_bf16_tflops,
        )
        degrees = c.ParallelismConfig(
            tp_size=n["tp"],
            pp_size=n["pp"],
            dp_size=n["dp"],
            sp_size=n["tp"] if n["sequence_parallel"] else 1,
        )
        found = a.LLMAnalysis(
            model, gpu, c.DtypeConfig(), degrees, flops_efficiency=0.5, hbm_memory_efficiency=0.9
        ).training(
            batch_size_per_gpu=n["mbs"],
            gradient_accumulation_steps=n["gas"],
            seq_len=n["seq_length"],
            activation_recomputation=a.ActivationRecomputation(n["recompute"]),
            ds_zero=a.DSZeRO(_stage(n)),
            flash_attn=habits.flash_attention,
        )
        return found["latency_per_iter"], found["(weight+op_state+grad+act)_memory_per_gpu"]


def _stage(n: Mapping[str, int]) -> int:
    """ZeRO's stage, or the one that shards the same states."""
    if n["zero_stage"] >= 0:
        return n["zero_stage"]
    split = [n[f"{state}_shard"] > 1 for state in ("weight", "gradient", "optimizer")]
    return 3 - split.index(True) if any(split) else 0


def predictors() -> tuple[list[Predictor], list[str]]:
    """Installed predictors, and lines on the versions used or how to install the others."""
    found: list[Predictor] = [Meshtune(), FlopsAndBubble()]
    try:
        peer = LlmAnalysis()
    except ImportError:
        return found, [
            "llm-analysis is not installed, so its columns are empty: "
            "pip install --no-deps llm-analysis==0.2.2 && pip install fire 'transformers<5'"
        ]
    return [*found, peer], [f"llm-analysis {peer.version}"]
