"""``--simulate KEY=VALUE,...``: the simulated cluster, and its misfit to the cost model."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from analysis import StartUp
from foundation.documents import plain_scalar
from foundation.messages import nearest
from foundation.records import Record, wrong_value
from foundation.values import Duration
from search_spaces import SearchSpace
from slurm import SimulatedCluster

MOST_NODES = 200_000  # no cluster has more; each has a name and a speed, which take memory
DEFAULT_TRIALS = 8  # widest trials at once: with more, none would learn from another
_TRUTH = ("model_error", "misfit")  # distance from the cost model
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0)]


class SimulationError(ValueError):
    """Unusable simulation settings; the message names the remedy."""


class _Settings(Record):
    """Settings by their keys; those that are not given are the cluster's own."""

    nodes: int = Field(default=1, ge=1, le=MOST_NODES)
    seed: int = Field(default=0, ge=0)
    start_up_s: Duration = Field(default=0.0, alias="start_up")
    noise: Rate = 0.0
    node_noise: Rate = 0.0
    crash: Share = 0.0
    hang: Share = 0.0
    launch_failure: Share = 0.0
    node_failures_per_day: Rate = 0.0
    repair_s: Duration = Field(default=0.0, alias="repair")
    time_s: Duration = Field(default=0.0, alias="time")
    max_concurrent: int = Field(default=1, ge=1)
    model_error: Rate = 0.0
    misfit: Rate = 0.0


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
    keys = [field.alias or name for name, field in _Settings.model_fields.items()]
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in keys:
            raise SimulationError(
                f"--simulate {item}: accepted KEY=VALUE,... with {', '.join(keys)}"
                f"{nearest(key, keys)}"
            )
        try:
            found = _Settings.model_validate({key: plain_scalar(value)})
        except ValidationError as error:
            raise SimulationError(f"--simulate {item}: {wrong_value(error.errors()[0])}") from None
        fields |= found.model_dump(exclude_unset=True)
    truth = {key: fields.pop(key) for key in _TRUTH}
    return SimulatedCluster(**fields), truth
