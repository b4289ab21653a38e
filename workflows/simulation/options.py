"""``--simulate KEY=VALUE,...``: the simulated cluster, and how far it is from the cost model."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from analysis import start_up_s
from foundation.messages import nearest
from foundation.values import seconds
from search_spaces import SearchSpace
from slurm import SimulatedCluster

DEFAULT_TRIALS = 8  # widest ones at once: on more nodes none would learn from another


class SimulationError(ValueError):
    """A simulation that cannot be; the message names the remedy."""


def _share(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise ValueError("accepted a share from 0 to 1")


def _rate(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise ValueError("accepted a number of 0 or more")


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise ValueError("accepted a whole number above 0")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("accepted a whole number of 0 or more")
    return int(text)


def _duration(text: str) -> float:
    return seconds(float(text) if text.isdecimal() else text)


# Key: the record's field, and how its value is read.
_CLUSTER: dict[str, tuple[str, Callable[[str], Any]]] = {
    "nodes": ("nodes", _count),
    "seed": ("seed", _seed),
    "start_up": ("start_up_s", _duration),
    "noise": ("noise", _rate),
    "node_noise": ("node_noise", _rate),
    "crash": ("crash", _share),
    "hang": ("hang", _share),
    "launch_failure": ("launch_failure", _share),
    "node_failures_per_day": ("node_failures_per_day", _rate),
    "repair": ("repair_s", _duration),
    "time": ("time_s", _duration),
    "max_concurrent": ("max_concurrent", _count),
}
_TRUTH = ("model_error", "misfit")  # how far it is from the cost model


def parse_options(space: SearchSpace, text: str) -> tuple[SimulatedCluster, dict[str, float]]:
    """What ``text`` says for a space, and the rest by default.

    Returns:
        The cluster, and by name (``model_error``, ``misfit``) how far it is from the cost model.

    Raises:
        SimulationError: for an unknown key or a value that does not fit it.
    """
    known = None if space.cluster is None else space.cluster.num_nodes
    most = DEFAULT_TRIALS * space.widths[-1]
    nodes = min(known or most, most)
    fields: dict[str, Any] = {"nodes": nodes, "start_up_s": start_up_s(space)}
    truth = dict.fromkeys(_TRUTH, 0.0)
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in (*_CLUSTER, *_TRUTH):
            keys = [*_CLUSTER, *_TRUTH]
            raise SimulationError(
                f"--simulate {item}: accepted KEY=VALUE,... with {', '.join(keys)}"
                f"{nearest(key, keys)}"
            )
        try:
            if key in _TRUTH:
                truth[key] = _rate(value)
            else:
                field, read = _CLUSTER[key]
                fields[field] = read(value)
        except ValueError as mistake:
            raise SimulationError(f"--simulate {item}: {mistake}") from mistake
    return SimulatedCluster(**fields), truth
