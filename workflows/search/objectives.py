"""A trial's objectives and bounded metrics, from its result and its number of nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from analysis import Metrics, MissingMetricError
from foundation.bounds import Bound
from search_spaces import Objective, SearchSpace
from workflows.search.throughput import completed, job_of, named_by_meaning

BILLION = 1e9  # cost and co2 are of so many tokens


def _value(
    key: str, result: Mapping[str, Any], space: SearchSpace, config: Mapping[str, Any]
) -> float:
    """A metric of the result, or derived from others; infinite if one behind it is 0.

    Raises MissingMetricError for the metric that the result lacks.
    """
    of = partial(Metrics(result).required, wanted=key)
    with suppress(MissingMetricError):
        return of(key)
    if key == "num_nodes":
        return space.num_nodes(config)
    if key == "node_seconds_per_token":
        rate = of("tokens_per_second")
        return space.num_nodes(config) / rate if rate else math.inf
    if key == "joules_per_token" or key in space.priced():
        needed = ["energy_joules", "tokens_per_second", "step_time_s.median"]
        if key in space.priced(measured=False):  # by the node-hour alone
            needed = ["tokens_per_second"]
        if not all(of(name) for name in needed):
            return math.inf
    return of(key)


def with_prices(
    space: SearchSpace, config: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, Any]:
    """A result with energy, cost and CO2 as far as they follow from it.

    A trainer's energy is that of all measured steps, as the batch differs between trials.
    """
    whole, steps, found = dict(result), space.trial.measured_steps, Metrics(result).get
    if (per_gpu := found("joules_per_step_per_gpu")) is not None:
        gpus = float(space.facts(config)["world_size"])
        whole.setdefault("energy_joules", per_gpu * gpus * steps)
    if not (rate := found("tokens_per_second")):
        return whole
    joules, step_s = Metrics(whole).get("energy_joules"), found("step_time_s.median")
    per_token = joules / (rate * step_s * steps) if joules and step_s else None
    if space.cluster is not None:
        node_s = BILLION * space.num_nodes(config) / rate
        whole = space.cluster.bill(node_s, per_token and BILLION * per_token) | whole
    return ({"joules_per_token": per_token} if per_token else {}) | whole


def values_of(
    wanted: Iterable[Objective | Bound],
    space: SearchSpace,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
) -> dict[str, float]:
    """The value of every wanted metric, in their order; may be infinite or not a number.

    Raises MissingMetricError if the result lacks a metric that one needs.
    """
    if space.trainer.builtin is None:
        result = completed(job_of(space, config), named_by_meaning(space, config, result))
    result, found = with_prices(space, config, result), {}
    for key in (each.key for each in wanted):
        try:
            found[key] = _value(key, result, space, config)
        except MissingMetricError as missing:
            if missing.key == "energy_joules" and "energy_source" in result:
                why = str(result["energy_source"])
            elif "tokens_per_second" in missing.key and space.uneven_lengths:
                why = space.uncounted(result)
            else:
                raise
            raise MissingMetricError(missing.key, result, key, why) from None
    return found
