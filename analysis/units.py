"""Names and units of metrics, for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from foundation.documents import read_document
from foundation.quantities import measured

if TYPE_CHECKING:
    import pandas as pd

Value = TypeVar("Value", float, "float | None", "pd.Series[float]")

_TABLE: dict[str, Any] = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
_KNOWN: dict[str, list[str]] = _TABLE["metrics"]
_ENDS: dict[str, str] = _TABLE["ends"]
GIB = 2**30


def name(key: str) -> str:
    """Name of a metric, without its unit."""
    if key in _KNOWN:
        return _KNOWN[key][0]
    stem = key.removesuffix(".median")
    for suffix in _ENDS:
        stem = stem.removesuffix(suffix)
    return stem.replace("_", " ").replace(".", " ")


def unit(key: str) -> str:
    """Unit in which a metric is shown; empty if unknown."""
    if key in _KNOWN:
        return _KNOWN[key][1]
    stem = key.removesuffix(".median")
    return next((shown for suffix, shown in _ENDS.items() if stem.endswith(suffix)), "")


def unit_or_name(key: str) -> str:
    """The unit of a metric, as it follows a value."""
    return unit(key) or name(key)


def label(key: str) -> str:
    """Name and unit, for an axis or a column: ``throughput (tokens/s)``."""
    return f"{name(key)} ({unit(key)})" if unit(key) else name(key)


def text(key: str, value: float, error: float = 0.0) -> str:
    """A value with its unit, and with its standard error if there is one: ``31.5 ± 0.7 s``."""
    return f"{measured(scaled(key, value), scaled(key, error))} {unit_or_name(key)}"


def scaled(key: str, value: Value) -> Value:
    """A value, or a column of values, in the unit in which it is shown: bytes become GiB."""
    return value if value is None or unit(key) != "GiB" else value / GIB


def aligned(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of a table whose columns are right-justified, their names first."""
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]
