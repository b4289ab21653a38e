"""The metrics in a trainer's result: numbers by dotted key, read the same way everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis import units
from foundation.documents import by_dotted_path
from foundation.files import is_number

LEAST, LARGEST = 1e-100, 1e100  # of possible measurements, besides 0


class MissingMetricError(ValueError):
    """A result lacks the metric ``key``; the message names it and what the result has."""

    def __init__(self, key: str, result: Mapping[str, Any], wanted: str, why: str = "") -> None:
        of = "" if key == wanted else f", from which {wanted!r} follows"
        there = ", ".join(sorted(map(str, result))) or "nothing"
        found = f" (found {repr(result[key])[:60]})" if key in result else ""
        because = f": {why}" if why else ""
        super().__init__(f"the result has no number {key!r}{of}{found}{because}; it has {there}")
        self.key = key


class Metrics:
    """The numbers of one result, by dotted key such as ``step_time_s.median``."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = result

    unit = staticmethod(units.unit)
    scaled = staticmethod(units.scaled)

    @staticmethod
    def possible(value: float) -> bool:
        """Whether a measurement can be this: 0, or of a size that arithmetic survives."""
        return value == 0 or LEAST <= abs(value) <= LARGEST

    def get(self, key: str) -> float | None:
        """The metric; None if there is none, or it is not ``possible`` (nan, 1e308)."""
        value = self._at(key)
        return value if is_number(value) and self.possible(value) else None

    def required(self, key: str, wanted: str = "") -> float:
        """The metric; it may be infinite, nan or otherwise impossible.

        Raises MissingMetricError if there is none; ``wanted`` is what is derived from it.
        """
        value = self._at(key)
        if not is_number(value):
            raise MissingMetricError(key, self._result, wanted or key)
        try:
            return float(value)
        except OverflowError:  # a whole number beyond any float
            return math.inf

    def all(self) -> dict[str, float]:
        """Every possible metric of the result, by dotted key."""
        every = by_dotted_path(self._result).items()
        return {key: v for key, v in every if is_number(v) and self.possible(v)}

    def _at(self, key: str) -> Any:
        if key in self._result:  # of a table, whose columns have whole keys
            return self._result[key]
        value: Any = self._result
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value
