"""``--simulate KEY=VALUE,...``: the simulated cluster, and its misfit to the cost model."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from analysis import StartUp
from foundation.messages import nearest
from foundation.values import seconds
from search_spaces import SearchSpace
from slurm import SimulatedCluster

MOST_NODES = 200_000  # no cluster has more; each has a name and a speed, which take memory
DEFAULT_TRIALS = 8  # widest trials at once: with more, none would learn from another


class SimulationError(ValueError):
    """Unusable simulation settings; the message names the remedy."""


def _reader(
    kind: Callable[[str], float], accepted: str, fits: Callable[[float], bool]
) -> Callable[[str], float]:
    """Reads a number, or raises ValueError with what is accepted."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if fits(value := kind(text)):
                return value
        raise ValueError(f"accepted {accepted}")

    return read


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else -1


_share = _reader(float, "a share from 0 to 1", lambda value: 0 <= value <= 1)
_rate = _reader(float, "a number of 0 or more", lambda value: 0 <= value < math.inf)
_count = _reader(_whole, "a whole number above 0", lambda value: value >= 1)
_nodes = _reader(
    _whole,
    f"a whole number above 0, up to {MOST_NODES:,}: no cluster has more",
    lambda value: 1 <= value <= MOST_NODES,
)
_seed = _reader(_whole, "a whole number of 0 or more", lambda value: value >= 0)


def _duration(text: str) -> float:
    return seconds(float(text) if text.isdecimal() else text)


_TRUTH = ("model_error", "misfit")  # distance from the cost model
_READERS: dict[str, Callable[[str], Any]] = {
    "nodes": _nodes,
    "seed": _seed,
    "start_up": _duration,
    "noise": _rate,
    "node_noise": _rate,
    "crash": _share,
    "hang": _share,
    "launch_failure": _share,
    "node_failures_per_day": _rate,
    "repair": _duration,
    "time": _duration,
    "max_concurrent": _count,
    **dict.fromkeys(_TRUTH, _rate),
}


def parse_options(space: SearchSpace, text: str) -> tuple[SimulatedCluster, dict[str, float]]:
    """The cluster set by ``text``, with defaults for a space, and its errors by name.

    The errors are its distance from the cost model, ``model_error`` and ``misfit``.

    Raises SimulationError for an unknown key or a value that does not fit it.
    """
    known = None if space.cluster is None else space.cluster.num_nodes
    most = DEFAULT_TRIALS * space.widths[-1]
    nodes = min(known or most, most)
    fields: dict[str, Any] = {"nodes": nodes, "start_up_s": StartUp.expected(space).base_s}
    fields |= dict.fromkeys(_TRUTH, 0.0)
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in _READERS:
            raise SimulationError(
                f"--simulate {item}: accepted KEY=VALUE,... with {', '.join(_READERS)}"
                f"{nearest(key, [*_READERS])}"
            )
        try:
            fields[f"{key}_s" if _READERS[key] is _duration else key] = _READERS[key](value)
        except ValueError as mistake:
            raise SimulationError(f"--simulate {item}: {mistake}") from mistake
    truth = {key: fields.pop(key) for key in _TRUTH}
    return SimulatedCluster(**fields), truth
