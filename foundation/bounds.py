"""A bound on a measured value as people write it: ``peak_memory_bytes < 70 GiB``."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from typing import Self

from foundation.quantities import number

_FORM = re.compile(
    r"\s*(?P<key>[^\s<>=]{1,200})\s*(?P<sign><=|>=|<|>)\s*"
    r"(?P<number>[-+]?(?:[0-9][0-9,_]*)?\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*"
)
_UNITS: dict[str, dict[str, float]] = {
    "bytes": {
        "B": 1.0,
        **{f"{prefix}B": 1e3**i for i, prefix in enumerate("kMGT", 1)},
        **{f"{prefix}iB": 2.0 ** (10 * i) for i, prefix in enumerate("KMGT", 1)},
    },
    "s": {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    "joules": {"J": 1.0, "kJ": 1e3, "MJ": 1e6},
    "watts": {"W": 1.0, "kW": 1e3},
}
"""Sizes of the accepted units, by the last word of a metric's name."""


@dataclass(frozen=True)
class Bound:
    """A limit of one metric."""

    text: str  # as it was written
    key: str  # of the metric; dots reach inside the result
    sign: str  # ``<``, ``<=``, ``>`` or ``>=``
    value: float  # in the metric's own unit

    @classmethod
    def of(cls, text: str) -> Self:
        """A bound from its text; raises ValueError, which says what is accepted.

        >>> Bound.of("peak_memory_bytes < 70 GiB").value
        75161927680.0
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(
                "accepted a metric, <, <=, > or >=, and a number with or without its unit, such as "
                "val_loss < 2.1 or peak_memory_bytes < 70 GiB"
            )
        key, unit = found["key"], found["unit"]
        value = float(found["number"].replace(",", "").replace("_", ""))
        units = _units_of(key)
        if unit and unit not in units:
            accepted = ", ".join(units) or (
                f"a number without one: only metrics that end in {', '.join(_UNITS)} take units, "
                "as peak_memory_bytes does"
            )
            raise ValueError(f"found the unit {unit} for {key}, accepted {accepted}")
        value *= units.get(unit, 1.0)
        if not math.isfinite(value):
            raise ValueError("accepted a finite number")
        return cls(" ".join(text.split()), key, found["sign"], value)

    @property
    def upper(self) -> bool:
        """Whether less is better."""
        return self.sign.startswith("<")

    def excess(self, measured: float) -> float:
        """How far a value is beyond the bound: positive if it does not hold, else 0 or less."""
        beyond = measured - self.value if self.upper else self.value - measured
        strict = len(self.sign) == 1
        return sys.float_info.min if strict and beyond == 0 else beyond

    def violation(self, measured: float) -> str:
        """``val_loss 2.31, not < 2.1`` if the bound does not hold, else nothing."""
        if self.excess(measured) <= 0:
            return ""
        unit = self.text.split()[-1]
        size = _units_of(self.key).get(unit)
        said = f"{number(measured / size)} {unit}" if size else number(measured)
        return f"{self.key} {said}, not {self.text[len(self.key) :].strip()}"


def _units_of(key: str) -> dict[str, float]:
    return _UNITS.get(re.split(r"[._]", key.removesuffix(".median"))[-1], {})
