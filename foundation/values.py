"""Types of values in files that people write: names, numbers, durations."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from foundation.files import is_number

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|m|h|d)")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_DURATION_S = 366 * 86400.0


def seconds(value: Any) -> float:
    """Seconds in ``90``, ``90s``, ``20m``, ``6h`` or ``2d``; raises ValueError."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        value = float(match[1]) * _UNIT_S[match[2]]
    if not is_number(value):
        raise ValueError("accepted a duration: seconds, or 90s, 20m, 6h, 2d")
    if not 0 < value <= _MAX_DURATION_S:
        raise ValueError("accepted a duration above zero, of a year at most")
    return float(value)


Duration = Annotated[
    float,
    BeforeValidator(seconds),
    WithJsonSchema(
        {
            "description": "seconds, or text such as 90s, 20m, 6h, 2d",
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?[smhd]$"},
            ],
        }
    ),
]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Scalar = bool | int | float | str
Number = int | float
