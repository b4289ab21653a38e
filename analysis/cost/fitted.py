"""Constants fitted to published runs, from which a search starts.

``fitted.yaml`` beside this file is written by ``python -m benchmarks.cost_model.fit`` and names the
tables that its constants come from. On the machine on which a framework was fitted, all constants
are from this fit. Elsewhere those of the host and of kernels' memory traffic come from runs of the
framework, and those of the GPU from runs on its kind, or else on any; the rest, such as the
network's, are the priors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from analysis.cost.compute import ComputeConstants
from analysis.cost.constants import Array, names
from analysis.cost.memory import MemoryConstants
from analysis.cost.memory_fit import MemoryModel
from analysis.cost.model import CostModel
from analysis.cost.network import Network
from analysis.cost.time_constants import OverlapConstants, TimeConstants
from search_spaces import FRAMEWORKS, Cluster, Framework

FILE = Path(__file__).with_name("fitted.yaml")
OF_FRAMEWORK = (
    *("score_bytes", "ring_share", "launch_s", "expert_launch_s"),
    *names(OverlapConstants),
)
OF_GPU = tuple(name for name in names(ComputeConstants) if name not in OF_FRAMEWORK)


def cost_model(cluster: Cluster, framework: Framework) -> CostModel:
    """The model of a framework on a machine, with constants from published runs of both."""
    known = _known()
    own = _fits(framework)
    gpu = known["gpus"].get(gpu_kind(cluster), known["gpus"]["any"])
    learnt: dict[str, Any] = {}
    if own.get("machine") == cluster.name:
        learnt["constants"], learnt["covariance"] = _read(TimeConstants, own["time"])
        learnt |= {"foreign": True} | {k: float(own[k]) for k in ("log_sd", "tail_log_sd")}
    else:
        learnt["constants"] = TimeConstants(**{**gpu, **own.get("elsewhere", {})})
    if "network" in own:
        learnt["network"] = Network.known(**own["network"])
    if "memory" in own:
        learnt["memory"] = MemoryModel(*_read(MemoryConstants, own["memory"]))
    return CostModel(cluster, framework, **learnt)


def suspected(constants: TimeConstants) -> dict[str, TimeConstants]:
    """Constants of time for each record that the framework may be like, by the record's name."""
    return {
        name: replace(constants, **_fits(one).get("elsewhere", {}))
        for name, one in FRAMEWORKS.items()
    }


def _fits(framework: Framework) -> dict[str, Any]:
    """Fits to runs of a framework, or of the one that it is ``fitted_as``; empty without any."""
    fits: dict[str, dict[str, Any]] = _known()["frameworks"]
    return fits.get(framework.name) or fits.get(framework.fitted_as, {})


def gpu_kind(cluster: Cluster) -> float:
    """Key by which GPUs share constants: their advertised peak, which tells the architecture."""
    return float(cluster.peak_bf16_tflops or cluster.peak_fp32_tflops or 0.0)


@cache
def _known() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def _read(kind: type[Any], values: dict[str, list[float]]) -> tuple[Any, Array]:
    """Constants and covariance; those that the file does not name, such as new ones: the prior."""
    prior = dict(zip(names(kind), kind.spreads(), strict=True))
    known = {name: v for name, v in values.items() if name in prior}
    spreads = [known[name][1] if name in known else prior[name] for name in prior]
    return kind(**{name: v[0] for name, v in known.items()}), np.diag(np.square(spreads))
