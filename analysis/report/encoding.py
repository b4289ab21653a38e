"""Parameters of every type as numbers that keep their order, for a forest to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_ORDERS: Mapping[str, tuple[str, ...]] = {"recompute": ("none", "selective", "full")}


@dataclass(frozen=True)
class Encoded:
    """Parameters as numbers that keep their order, one column per parameter that varied.

    Attributes:
        values: float, one row per trial. Numbers are themselves, false and true 0 and 1, words
            their place in ``legend``; an inactive parameter (None) lies one below the smallest.
        inactive: bool, the same shape: where the parameter had no effect.
        legend: parameter -> its values from low to high, in words.
        words: parameter -> its values in words, by the number that stands for each.
        constant: parameters that had one value only, and that value.
    """

    values: pd.DataFrame
    inactive: pd.DataFrame
    legend: dict[str, str]
    words: dict[str, dict[float, str]]
    constant: dict[str, Any]

    def word(self, name: str, value: float) -> str:
        """What a parameter's number stands for."""
        return self.words[name][value]

    def rows(self, chosen: NDArray[np.int_]) -> Encoded:
        """Of some of the trials, by their place; legends are of all."""
        return replace(self, values=self.values.iloc[chosen], inactive=self.inactive.iloc[chosen])


def encode(frame: pd.DataFrame) -> Encoded:
    """Turn the ``p:*`` columns of a run's trials into what a forest can read.

    Words whose column is an ordered categorical, as ``load`` gives it where the space says
    ``{ordered: [...]}``, keep that order.
    """
    values: dict[str, list[float]] = {}
    inactive: dict[str, list[bool]] = {}
    legend: dict[str, str] = {}
    spoken: dict[str, dict[float, str]] = {}
    constant: dict[str, Any] = {}
    for column in frame.columns:
        if not column.startswith("p:"):
            continue
        name = column.removeprefix("p:")
        cells = [None if _missing(v) else v for v in frame[column]]
        words = {v if _is_number(v) else str(v) for v in cells if v is not None}
        distinct = _in_order(words, _order(name, frame[column].dtype))
        if len(distinct) + (None in cells) < 2:
            constant[name] = distinct[0] if distinct else None
            continue
        code = {v: float(v) if _all_numbers(distinct) else i for i, v in enumerate(distinct)}
        off = min(code.values()) - 1
        values[name] = [off if v is None else code[v if _is_number(v) else str(v)] for v in cells]
        inactive[name] = [v is None for v in cells]
        legend[name] = _legend(distinct, None in cells)
        spoken[name] = {float(number): _word(v) for v, number in code.items()}
    return Encoded(
        pd.DataFrame(values, index=frame.index, dtype=float),
        pd.DataFrame(inactive, index=frame.index, dtype=bool),
        legend,
        spoken,
        constant,
    )


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.bool_, np.number))


def _all_numbers(values: list[Any]) -> bool:
    return all(map(_is_number, values))


def _order(name: str, dtype: Any) -> Sequence[str]:
    """The order of a parameter's words: the space's own, or the one that is known."""
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        return [str(value) for value in dtype.categories]
    return _ORDERS.get(name, ())


def _in_order(distinct: set[Any], order: Sequence[str]) -> list[Any]:
    """Numbers by value, then words by their order, or else by the alphabet."""

    def key(value: Any) -> tuple[int, float, str]:
        if _is_number(value):
            return 0, float(value), ""
        return 1, order.index(value) if value in order else len(order), value

    return sorted(distinct, key=key)


def _legend(distinct: list[Any], inactive: bool) -> str:
    words = [_word(v) for v in distinct]
    shown = ", ".join(words) if len(words) <= 6 else f"{words[0]} … {words[-1]}"
    return f"{shown}, or inactive" if inactive else shown


def _word(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if _is_number(value) and float(value).is_integer():
        return str(int(value))
    return f"{value:.4g}" if _is_number(value) else str(value)
