"""Constants as published runs of a framework have them: where a search for it starts from.

``fitted.yaml`` beside this file is written by ``python -m benchmarks.cost_model.fit`` and says
which tables each framework's constants are from. A framework that is not in it starts from the
priors.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from analysis.cost.constants import Array, Constants
from analysis.cost.memory import MemoryConstants, MemoryModel
from analysis.cost.model import CostModel
from analysis.cost.profiles import Profile
from analysis.cost.step import TimeConstants
from analysis.machine import Machine

FILE = Path(__file__).with_name("fitted.yaml")


def cost_model(machine: Machine, profile: Profile) -> CostModel:
    """The model of a framework on a machine, with its fitted constants where there are any."""
    known = _known().get(profile.name)
    start = CostModel(machine, profile)
    if known is None:
        return start
    time, time_covariance = _read(TimeConstants, known["time"])
    memory, memory_covariance = _read(MemoryConstants, known["memory"])
    return replace(
        start,
        constants=time,
        covariance=time_covariance,
        log_sd=float(known["log_sd"]),
        memory=MemoryModel(memory, memory_covariance),
    )


def written(model: CostModel, source: str) -> dict[str, Any]:
    """What ``fitted.yaml`` says of one framework: each constant and the deviation of its log."""
    return {
        "source": source,
        "log_sd": round(model.log_sd, 3),
        "time": _written(model.constants, model.covariance),
        "memory": _written(model.memory.constants, model.memory.covariance),
    }


@cache
def _known() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text()) or {} if FILE.exists() else {}


def _written(constants: Constants, covariance: Array | None) -> dict[str, list[float]]:
    spreads = type(constants).spreads() if covariance is None else np.sqrt(np.diag(covariance))
    return {
        f.name: [float(f"{getattr(constants, f.name):.4g}"), float(f"{spread:.3g}")]
        for f, spread in zip(fields(constants), spreads, strict=True)
    }


def _read(kind: type[Any], values: dict[str, list[float]]) -> tuple[Any, Array]:
    """Constants that the file does not name, such as new ones, have their priors."""
    prior = dict(zip([f.name for f in fields(kind)], kind.spreads(), strict=True))
    known = {name: v for name, v in values.items() if name in prior}
    spreads = [known[name][1] if name in known else prior[name] for name in prior]
    return kind(**{name: v[0] for name, v in known.items()}), np.diag(np.square(spreads))
