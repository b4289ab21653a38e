"""A trial's objectives and bounded metrics, from its result and its number of nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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


# Objectives that no trainer needs to report.
DERIVED: dict[str, Callable[[_Reader, SearchSpace, Mapping[str, Any]], float]] = {
    "num_nodes": lambda of, space, config: space.num_nodes(config),
    "node_seconds_per_token": lambda of, space, config: (
        space.num_nodes(config) / of("tokens_per_second")
    ),
    "joules_per_token": _joules_per_token,
}


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
                if "tokens_per_second" not in missing.key or not space.uneven_lengths:
                    raise
                why = space.uncounted(result)
                raise MissingMetricError(missing.key, result, key, why) from None
    return found
