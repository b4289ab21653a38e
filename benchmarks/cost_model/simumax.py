"""SimuMax, an analytical simulator of Megatron's training, as a peer of the cost model.

Its code is not part of this repository: the benchmark imports it from a checkout given by the user
(https://github.com/MooreThreads/SimuMax). It describes a machine by a file with the efficiency of
every operator that its authors measured, and has two: B200 and A100 with PCIe. An A100 behind
NVSwitch gets the operators of the A100 file, and the share of link bandwidth that collectives reach
in the other file, which is of NVSwitch. An H100, without a file, gets the same at its own peaks.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.sweeps.record import Table
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from trainer.plan.jobs import FULL, NO_MODULES, ONE_F_ONE_B, SELECTIVE, Jobs

from .peers import Fitted, Predicted

A100, H100, B200 = 312.0, 989.0, 2250.0  # TFLOP/s by which GPUs are identified
PER_NODE = 8
_FILES = {A100: "a100_pcie", H100: "a100_pcie", B200: "b200_bf16_ceperm"}
_NVSWITCH = "b200_bf16_ceperm"
ENGINE = "2.11.0"  # of Transformer Engine, in the runs that it was validated with


class MissingError(Exception):
    """The named folder has no usable checkout; the message says what to do."""


class InexpressibleError(Exception):
    """SimuMax cannot express a job; the message names the property."""


class SimuMax:
    """Predicts a job's time and memory from its own files alone.

    Args:
        folder: its checkout.
        fused_loss: jobs have a fused cross entropy.

    Attributes:
        refused: how many jobs it could not express, by reason.

    Raises:
        MissingError: if the folder has none, or it cannot be imported.
    """

    name = "SimuMax"
    learns = False

    def __init__(self, folder: Path, fused_loss: bool = False) -> None:
        self._folder, self._fused_loss = folder, fused_loss
        self._config, self._perf = imported(folder)
        self.refused: Counter[str] = Counter()

    def fit(self, train: Sequence[Table]) -> Fitted:
        def fitted(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
            rows = [self._row(jobs[i : i + 1], cluster, habits) for i in range(len(jobs))]
            time_s, peak_bytes = np.array(rows, dtype=float).reshape(-1, 2).T
            nothing = np.full(len(jobs), np.nan)
            fits = np.where(peak_bytes <= cluster.memory_bytes, 1.0, 0.0)
            fits = np.where(np.isnan(peak_bytes), np.nan, fits)
            return Predicted(time_s, peak_bytes, fits, time_s, nothing, nothing)

        return fitted

    def _row(self, job: Jobs, cluster: Cluster, habits: Framework) -> tuple[float, float]:
        """Step time and peak memory; nan where it cannot express the job."""
        try:
            return self._one(job, cluster, habits)
        except InexpressibleError as error:
            self.refused[str(error)] += 1
        except (AssertionError, RuntimeError, ValueError) as error:  # its own checks
            self.refused[f"refused: {str(error).split(',')[0].split('(')[0][:60]}"] += 1
        return np.nan, np.nan

    def _one(self, job: Jobs, cluster: Cluster, habits: Framework) -> tuple[float, float]:
        _check(job)
        n = {name: int(column[0]) for name, column in job.columns().items()}
        perf, config = self._perf.PerfLLM(), self._config
        system = config.SystemConfig.init_from_dict(_system(self._folder, cluster))
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # on settings that it validated least
            perf.configure(
                strategy_config=config.StrategyConfig(**self._strategy(n, habits)),
                model_config=config.ModelConfig(**_model(n)),
                system_config=system,
            )
            perf.run_estimate()
            memory, cost = perf.analysis_mem(), perf.analysis_cost().data
        rate = cost["throughput_per_accelerator"] * n["world_size"]
        tokens = n["mbs"] * n["gas"] * n["dp"] * n["seq_length"]
        kind = "peak_mem" if habits.reports == "allocated" else "peak_mem_with_reserved"
        return tokens / rate, max(perf.get_pp_stage_peak_mem(memory, kind).values())

    def _strategy(self, n: dict[str, int], habits: Framework) -> dict[str, Any]:
        return {
            "seq_len": n["seq_length"],
            "micro_batch_size": n["mbs"],
            "micro_batch_num": n["gas"],
            "dtype": "bf16",
            "world_size": n["world_size"],
            "tp_size": n["tp"],
            "cp_size": n["cp"],
            "pp_size": n["pp"],
            "ep_size": n["ep"],
            "etp_size": n["etp"] if n.get("mixture.num_experts") else 1,
            "interleaving_size": n["vpp"],
            "pp_comm_async": False,  # as it was validated
            "zero_state": int(n["optimizer_shard"] > 1),
            "enable_sequence_parallel": bool(n["sequence_parallel"]),
            "grad_reduce_in_bf16": habits.reduce_bytes == 2,
            "use_flash_sdp": habits.flash_attention,
            "use_math_sdp": not habits.flash_attention,
            "cross_entropy_loss_fusion": self._fused_loss,
            "te_version": ENGINE if self._fused_loss else None,
            "enable_recompute": n["recompute"] > 0,
            "recompute_granularity": {FULL: "full_block", SELECTIVE: "sdp_only"}.get(
                n["recompute"]
            ),
            "recompute_layer_num": n["num_layers"] if n["recompute"] else 0,
        }


def _check(job: Jobs) -> None:
    """Raises InexpressibleError if no field of its files expresses the job."""
    cannot = {
        "single modules' recomputation": job.options.recompute_modules != NO_MODULES,
        "ZeRO-2, ZeRO-3 and FSDP": (job.placement.weight_shard > 1)
        | (job.placement.gradient_shard > 1),
        "optimizer states split over some replicas": (job.placement.optimizer_shard > 1)
        & (job.placement.optimizer_shard < job.layout.replicas),
        "8 bits (no measured operators)": job.options.fp8,
        "float32": job.options.element_bytes != 2,
        "schedules beside 1F1B": job.options.schedule != ONE_F_ONE_B,
        "grids of more axes": job.layout.gy * job.layout.gz > 1,
    }
    for reason, rows in cannot.items():
        if np.any(rows):
            raise InexpressibleError(reason)


def _model(n: dict[str, int]) -> dict[str, Any]:
    made = {
        "hidden_size": n["hidden_size"],
        "head_num": n["num_heads"],
        "kv_head_num": n["kv_heads"],
        "head_size": n["attention_size"] // n["num_heads"],
        "intermediate_size": n["ffn_size"],
        "layer_num": n["num_layers"],
        "vocab_size": n["vocab_size"],
        "use_swiglu": bool(n["gated"]),
        "model_type": "dense",
    }
    if n.get("mixture.num_experts"):
        made |= {
            "model_type": "moe",
            "expert_num": n["mixture.num_experts"],
            "topk": n["mixture.experts_per_token"],
            "moe_ffn_hidden_size": n["mixture.expert_ffn_size"],
            "moe_shared_expert_intermediate_size": n["mixture.shared_ffn_size"] or None,
            "dense_layers": n["mixture.dense_layers"],
        }
    if n.get("latent.key_value_rank"):
        made |= {
            "attention_type": "mla",
            "head_size": n["latent.value_size"],
            "v_head_dim": n["latent.value_size"],
            "qk_head_dim": n["latent.key_size"],
            "qk_pos_emb_head_dim": n["latent.rotary_size"],
            "q_lora_rank": n["latent.query_rank"] or None,
            "kv_lora_rank": n["latent.key_value_rank"],
        }
    return made


@cache
def imported(folder: Path) -> tuple[Any, Any]:
    """SimuMax's modules of configuration and of performance.

    Raises:
        MissingError: if the folder does not have them, or a package is missing.
    """
    if not (folder / "simumax" / "core" / "perf_llm.py").is_file():
        raise MissingError(
            f"{folder} holds no SimuMax, so there is nothing to compare with: "
            "git clone https://github.com/MooreThreads/SimuMax, and name that folder"
        )
    sys.path.insert(0, str(folder))
    try:
        config = importlib.import_module("simumax.core.config")
        return config, importlib.import_module("simumax.core.perf_llm")
    except ImportError as error:
        raise MissingError(f"SimuMax of {folder} cannot be imported: {error}") from None
    finally:
        sys.path.remove(str(folder))


def _system(folder: Path, cluster: Cluster) -> dict[str, Any]:
    """The machine's description for SimuMax: its own file if it has measured that machine.

    Raises:
        InexpressibleError: if operators were measured neither on the GPU nor on a similar one.
    """
    peak = cluster.peak_bf16_tflops
    if peak not in _FILES or cluster.gpus_per_node != PER_NODE:
        raise InexpressibleError("GPUs without measured operators")
    system = deepcopy(_file(folder, _FILES[peak]))
    if peak == B200:
        return system
    known = system["accelerator"]
    rates = {"matmul", "group_matmul", "sdp_fwd", "sdp_bwd", "default"}
    for name in rates:
        known["op"][name]["tflops"] = peak
    for bandwidth in known["bandwidth"].values():
        bandwidth["gbps"] *= (cluster.memory_gb_per_s or 2000.0) / 2000.0
    nvswitch = _file(folder, _NVSWITCH)["networks"]
    links = deepcopy({name: nvswitch[name] for name in ("low_intra_node", "high_intra_node")})
    for link in links.values():
        link["bandwidth"]["gbps"] = cluster.links[-1].gb_per_s
    between = system["networks"]["inter_node"]
    if cluster.nic is not None:
        between["bandwidth"]["gbps"] = cluster.nic.count * cluster.nic.gb_per_s
    system["networks"] = {"intra_with_pcie": False, **links, "inter_node": between}
    return system


@cache
def _file(folder: Path, name: str) -> dict[str, Any]:
    path = folder / "configs" / "system" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found
