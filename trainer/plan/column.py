"""Columns of a job's parts: how each is declared, selected and joined. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

import numpy as np


class ColumnType(NamedTuple):
    default: Any = None  # None: required
    kind: type = float  # numbers are float64, so that products of sizes cannot overflow
    least: float | None = None  # smallest accepted number

    @property
    def dtype(self) -> Any:
        return np.float64 if self.kind is float else self.kind


def column(default: Any = None, kind: type = float, least: float | None = None) -> Any:
    """A field of a ``Part``; see ``ColumnType``."""
    return field(metadata={"column": ColumnType(default, kind, least)})


def mask(default: bool | None = False) -> Any:
    return column(default, bool)


@dataclass(frozen=True)
class Part:
    """Base of a job's parts: columns of shape (n,), optional records of columns."""

    @classmethod
    def declared(cls) -> dict[str, ColumnType]:
        return {f.name: f.metadata["column"] for f in fields(cls) if "column" in f.metadata}

    def stored(self) -> dict[str, Any]:
        """Its columns and records, without values derived from them."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def rows(self, rows: Any) -> Self:
        """Rows selected by a mask, slice or index array."""
        return type(self)(**{name: selected(value, rows) for name, value in self.stored().items()})


def selected(value: Any, rows: Any) -> Any:
    """Rows of a column, or of every column of a record or mapping."""
    if isinstance(value, dict):
        return {name: one[rows] for name, one in value.items()}
    if isinstance(value, tuple):
        return type(value)(*(one[rows] for one in value))
    return None if value is None else value[rows]


def broadcast(few: Any, shape: tuple[int, ...]) -> Any:
    if few is None:
        return None
    return type(few)(*(np.broadcast_to(np.asarray(size, np.float64), shape) for size in few))


def concatenated(values: list[Any], sizes: list[int]) -> Any:
    """Columns end to end; a record missing in a part counts as zeros."""
    some = next((value for value in values if value is not None), None)
    if some is None:
        return None
    if isinstance(some, tuple):
        kind: Any = type(some)
        without = [kind(*np.zeros((len(kind._fields), size))) for size in sizes]
        filled = [value or none for value, none in zip(values, without, strict=True)]
        return kind(*(np.concatenate(columns) for columns in zip(*filled, strict=True)))
    if isinstance(values[0], dict):
        return {key: np.concatenate([value[key] for value in values]) for key in values[0]}
    return np.concatenate(values)
