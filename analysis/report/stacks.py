"""The report's bars of predicted memory and step time, made of parts: what they are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.prediction.held_out import CrossValidation
from analysis.units import GIB
from trainer.plan.jobs import Array

SHOWN_SHARE = 0.01  # of the longest bar: thinner parts are drawn as one


def figure(validation: CrossValidation, trials: Sequence[int]) -> dict[str, Any]:
    """The parts of these trials' predictions, by the model that has learned from the run.

    Returns:
        ``labels`` of the trials; ``memory`` (GiB) and ``time`` (s): their ``parts`` by name, in the
        order in which they are stacked, and what was ``measured``; ``limit``: GiB of one GPU.
    """
    rows = [validation.trials.index(number) for number in trials]
    prediction = validation.prediction
    memory = {name: part[rows] / GIB for name, part in prediction.memory.as_dict().items()}
    time = {name: part[rows] for name, part in prediction.time.as_dict().items()}
    return {
        "labels": [f"trial {number}" for number in trials],
        "limit": prediction.model.memory_limit_bytes / GIB,
        "memory": _stack(memory, validation.measured_bytes[rows] / GIB),
        "time": _stack(time, validation.measured_s[rows]),
    }


def _stack(parts: Mapping[str, Array], measured: Array) -> dict[str, Any]:
    listed = {name.replace("_", " "): part.tolist() for name, part in seen(parts).items()}
    return {"parts": listed, "measured": measured.tolist()}


def seen(parts: Mapping[str, Array]) -> dict[str, Array]:
    """The parts that can be seen, and the others together."""
    least = SHOWN_SHARE * float(np.max(sum(parts.values())))
    shown = {name: v for name, v in parts.items() if v.max() >= least}
    rest = [v for name, v in parts.items() if name not in shown and v.max() > 0]
    return {**shown, "other": np.sum(rest, axis=0)} if rest else shown
