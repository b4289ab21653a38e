"""The metrics in a trainer's result: numbers by dotted key, read the same way everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from foundation.files import is_number

LEAST, LARGEST = 1e-100, 1e100  # of what a machine can be measured to do, other than nothing


class MissingMetricError(ValueError):
    """A result lacks a number; the message names it and what there is.

    Attributes:
        key: of the number.
    """

    def __init__(self, key: str, result: Mapping[str, Any], wanted: str) -> None:
        of = "" if key == wanted else f", from which {wanted!r} follows"
        there = ", ".join(sorted(map(str, result))) or "nothing"
        found = f" (found {repr(result[key])[:60]})" if key in result else ""
        super().__init__(f"the result has no number {key!r}{of}{found}; it has {there}")
        self.key = key


def possible(value: float) -> bool:
    """Whether anything can be measured to be this: 0, or of a size that arithmetic survives."""
    return value == 0 or LEAST <= abs(value) <= LARGEST


def metric(result: Mapping[str, Any], key: str) -> float | None:
    """The number at a dotted key, ``step_time_s.median`` say; None where there is none.

    Nor is one that nothing can be measured to be, such as nan or 1e308.
    """
    value = _at(result, key)
    return value if is_number(value) and possible(value) else None


def required_metric(result: Mapping[str, Any], key: str, wanted: str = "") -> float:
    """The number at a dotted key; it may be infinite, not a number or impossible.

    Args:
        result: of a trial.
        key: of the number.
        wanted: what follows from it, for the message; default itself.

    Raises:
        MissingMetricError: if there is none.
    """
    value = _at(result, key)
    if not is_number(value):
        raise MissingMetricError(key, result, wanted or key)
    try:
        return float(value)
    except OverflowError:  # a whole number beyond any float
        return math.inf


def numbers(result: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number of a result by its dotted key, as :func:`metric` has it."""
    flat: dict[str, float] = {}
    for key, value in result.items():
        if isinstance(value, Mapping):
            flat.update(numbers(value, f"{prefix}{key}."))
        elif is_number(value) and possible(value):
            flat[f"{prefix}{key}"] = value
    return flat


def _at(result: Mapping[str, Any], key: str) -> Any:
    value: Any = result
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
