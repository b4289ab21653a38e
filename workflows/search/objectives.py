"""A trial's objectives and bounded metrics, from its result and its number of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from analysis import Metrics, MissingMetricError
from search_spaces import SearchSpace
from workflows.search.throughput import completed, job_of, named_by_meaning

_Reader = Callable[[str], float]  # of the metrics from which an objective follows


def _joules_per_token(of: _Reader, space: SearchSpace, config: Mapping[str, Any]) -> float:
    """The energy is that of all measured steps; the batch differs between trials."""
    tokens_per_step = of("tokens_per_second") * of("step_time_s.median")
    return of("energy_joules") / (tokens_per_step * space.trial.measured_steps)


BILLION = 1e9  # tokens that cost and co2 are of


def _bill(key: str, of: _Reader, space: SearchSpace, config: Mapping[str, Any]) -> float:
    cluster = space.cluster
    assert cluster is not None  # checked where the space was read
    counts_energy = key == "co2" or cluster.price_per_kwh is not None
    joules = BILLION * _joules_per_token(of, space, config) if counts_energy else None
    node_s = BILLION * space.num_nodes(config) / of("tokens_per_second")
    return float(cluster.bill(node_s, joules)[key])


# Objectives that no trainer needs to report.
DERIVED: dict[str, Callable[[_Reader, SearchSpace, Mapping[str, Any]], float]] = {
    "num_nodes": lambda of, space, config: space.num_nodes(config),
    "node_seconds_per_token": lambda of, space, config: (
        space.num_nodes(config) / of("tokens_per_second")
    ),
    "joules_per_token": _joules_per_token,
    "cost": partial(_bill, "cost"),
    "co2": partial(_bill, "co2"),
}


def with_prices(
    space: SearchSpace, config: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, Any]:
    """A result with energy, money and carbon as far as they follow from it."""
    whole = dict(result)
    if (per_gpu := Metrics(result).get("joules_per_step_per_gpu")) is not None:
        per_step = per_gpu * float(space.facts(config)["world_size"])
        whole.setdefault("energy_joules", per_step * space.trial.measured_steps)
    for key in ("joules_per_token", *space.priced):
        with suppress(MissingMetricError, ZeroDivisionError, OverflowError):
            of = partial(Metrics(whole).required, wanted=key)
            whole.setdefault(key, DERIVED[key](of, space, config))
    return whole


def objective_values(
    space: SearchSpace, config: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, float]:
    """The value of every objective, in the space's order; may be infinite or not a number.

    Raises MissingMetricError if the result lacks a metric that one needs.
    """
    return _values(space, config, result, (objective.key for objective in space.objectives))


def bounded_values(
    space: SearchSpace, config: Mapping[str, Any], result: Mapping[str, Any]
) -> dict[str, float]:
    """The value of every metric that has a bound, likewise."""
    return _values(space, config, result, (bound.key for bound in space.subject_to))


def _values(
    space: SearchSpace, config: Mapping[str, Any], result: Mapping[str, Any], keys: Iterable[str]
) -> dict[str, float]:
    if space.trainer.builtin is None:
        result = completed(job_of(space, config), named_by_meaning(space, config, result))
        result = with_prices(space, config, result)
    found = {}
    for key in keys:
        of = partial(Metrics(result).required, wanted=key)
        try:
            found[key] = of(key)
        except MissingMetricError:
            try:
                if key not in DERIVED:
                    raise
                found[key] = DERIVED[key](of, space, config)
            except ZeroDivisionError:
                found[key] = math.inf
            except MissingMetricError as missing:
                if missing.key == "energy_joules" and "energy_source" in result:
                    why = str(result["energy_source"])
                elif "tokens_per_second" in missing.key and space.uneven_lengths:
                    why = space.uncounted(result)
                else:
                    raise
                raise MissingMetricError(missing.key, result, key, why) from None
    return found
