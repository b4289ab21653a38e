"""estimate-train-time, which sums measured operators of a GPT, as a peer of the cost model.

Zhang et al. 2025 (arXiv 2509.22832). Its code is not part of this repository: the benchmark imports
it from a checkout given by the user (https://github.com/DebarghaG/estimate-train-time). It needs
xgboost and ijson, trains its regressors on measurements on Perlmutter's A100, and keeps them in its
own folder. It predicts no memory.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.sweeps.record import Table
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from trainer.plan.jobs import FULL, ONE_F_ONE_B, Jobs

from .peers import Fitted, Predicted
from .simumax import A100, MissingError

GPU = "NVIDIAA100-SXM4-80GB"
REGRESSORS = "src/estimate_train_time/data/regressors/Perlmutter"
VOCABULARY = 50257  # fixed; it also stands for vocabularies that differ by little
MOST_TP = 4  # ranks of a measured group inside a node
LEAST_PP = 3  # a first, a middle and a last stage
BUCKET = 1_260_000_000  # elements, as in its examples
NORM = "layernorm"
LAYER = (
    *(NORM, "linear1", "baddbmm", "ScaledUpperTriangMaskedSoftmax", "bmm", "linear2"),
    *(NORM, "res_add", "linear3", "gelu", "linear4", "res_add"),
)
FLASH_LAYER = (
    *(NORM, "linear1", "flash_atten", "linear2"),
    *(NORM, "res_add", "linear3", "gelu", "linear4", "res_add"),
)
ENDS = ("embedding", "linear_final", "parallel_cross_entropy_128", NORM)


class EstimateTrainTime:
    """Predicts a job's time from operators measured elsewhere.

    Args:
        folder: its checkout.

    Attributes:
        refused: how many jobs it could not express, by reason.

    Raises:
        MissingError: if the folder has none, or a package is missing.
    """

    name = "estimate-train-time"
    learns = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._formulas, self._regressors = imported(folder)
        self.refused: Counter[str] = Counter()

    def fit(self, train: Sequence[Table]) -> Fitted:
        def fitted(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
            time_s = np.full(len(jobs), np.nan)
            for i in range(len(jobs)):
                if reason := inexpressible(jobs[i : i + 1], cluster):
                    self.refused[reason] += 1
                else:
                    time_s[i] = self._one(jobs[i : i + 1], cluster, habits)
            nothing = np.full(len(jobs), np.nan)
            return Predicted(time_s, nothing, nothing, time_s, nothing, nothing)

        return fitted

    def _one(self, job: Jobs, cluster: Cluster, habits: Framework) -> float:
        n = {name: int(column[0]) for name, column in job.columns().items()}
        sizes = ("pp", "tp", "dp", "mbs", "num_heads", "seq_length", "hidden_size", "gas")
        layer = list(FLASH_LAYER if habits.flash_attention else LAYER)
        data = self._folder / REGRESSORS
        with contextlib.redirect_stdout(io.StringIO()):
            microseconds = self._formulas.get_operator_statistics(
                self._regressors,
                GPU,
                str(data / "operator"),
                str(data / "nccl"),
                [*(n[name] for name in sizes), cluster.gpus_per_node],
                BUCKET,
                self._formulas.pp_partitions(n["num_layers"], n["pp"]),
                sorted({*layer, *ENDS}),
                layer,
                NORM,
                2,  # sums of tensor parallelism, of a layer's forward pass
                2,  # and of its backward pass
            )
        return float(microseconds) / 1e6


def inexpressible(job: Jobs, cluster: Cluster) -> str:
    """The first property of a job that estimate-train-time cannot express; "" if none."""
    plain = (
        (job.model.ffn_size == 4 * job.model.hidden_size)
        & ~job.model.gated
        & (job.model.kv_heads == job.model.num_heads)
    )
    cannot: dict[str, Any] = {
        "GPUs beside A100": cluster.peak_bf16_tflops != A100,
        "models beside GPT": ~plain | (job.model.mixture is not None),
        f"vocabularies beside {VOCABULARY:,}": np.abs(job.model.vocab_size / VOCABULARY - 1) > 0.05,
        "without full recomputation": job.options.recompute != FULL,
        "ZeRO-2, ZeRO-3 and FSDP": (job.placement.weight_shard > 1)
        | (job.placement.gradient_shard > 1),
        f"tp above {MOST_TP} (groups that were not measured)": job.layout.layer_ranks > MOST_TP,
        f"fewer than {LEAST_PP} stages": job.layout.pp < LEAST_PP,
        "interleaved stages, other schedules": (job.layout.vpp > 1)
        | (job.options.schedule != ONE_F_ONE_B),
        "context parallelism": job.layout.cp > 1,
    }
    return next((reason for reason, rows in cannot.items() if np.any(rows)), "")


@cache
def imported(folder: Path) -> tuple[Any, Any]:
    """estimate-train-time's formulas, and the object with the regressors that they share.

    Raises:
        MissingError: if the folder does not have them, or a package is missing.
    """
    if not (folder / REGRESSORS).is_dir():
        raise MissingError(
            f"{folder} holds no estimate-train-time, so there is nothing to compare with: "
            "git clone https://github.com/DebarghaG/estimate-train-time, and name that folder"
        )
    sys.path.insert(0, str(folder / "src"))
    try:
        own = "estimate_train_time.estimator"
        formulas = importlib.import_module(f"{own}.mml_3d_prediction")
        return formulas, importlib.import_module(f"{own}.predictor").Predictor()
    except ImportError as error:
        raise MissingError(
            f"estimate-train-time of {folder} cannot be imported: {error}; "
            "pip install xgboost ijson"
        ) from None
    finally:
        sys.path.remove(str(folder / "src"))
