"""Parameters of every type encoded as ordered numbers for a random forest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_ORDERS: Mapping[str, tuple[str, ...]] = {"recompute": ("none", "selective", "full")}
DISCRETE = 12  # values up to which numbers are drawn one by one
DECADES = 100.0  # ratio of largest to smallest number from which a scale is logarithmic


@dataclass(frozen=True)
class Encoded:
    """Parameters as ordered numbers, one column per parameter that varied."""

    # float, one row per trial. Numbers are kept, false and true are 0 and 1, words are their index
    # in order; an inactive parameter (None) is one below the smallest
    values: pd.DataFrame
    inactive: pd.DataFrame  # bool, the same shape: where the parameter is inactive
    words: dict[str, dict[float, str]]  # parameter -> its values as text, by code, from low to high
    constant: dict[str, Any]  # parameters with a single value, and that value
    types: dict[str, str]  # parameter -> ordered, continuous, logarithmic or categorical

    def levels(self, name: str) -> dict[str, Any]:
        """A parameter's values as text, from low to high, and each row's index ``of`` them.

        ``type`` as in ``types``; ``numbers`` are the values of a continuous or logarithmic one,
        None where it is inactive.
        """
        codes, place = np.unique(self.values[name].to_numpy(), return_inverse=True)
        texts = [self.words[name].get(float(code), "–") for code in codes]
        found = {"values": texts, "of": place.tolist(), "type": self.types[name]}
        if self.types[name] in ("continuous", "logarithmic"):
            found["numbers"] = [x if x in self.words[name] else None for x in codes.tolist()]
        return found

    def rows(self, chosen: NDArray[np.int_]) -> Encoded:
        """Some of the rows; ``words`` still has all values."""
        return replace(self, values=self.values.iloc[chosen], inactive=self.inactive.iloc[chosen])


def encode(frame: pd.DataFrame) -> Encoded:
    """Encode the ``p:*`` columns of a table of trials.

    Words of an ordered categorical column, as ``load`` gives it for ``{ordered: [...]}``, keep
    their order.
    """
    values: dict[str, list[float]] = {}
    inactive: dict[str, list[bool]] = {}
    words: dict[str, dict[float, str]] = {}
    constant: dict[str, Any] = {}
    types: dict[str, str] = {}
    for column in frame.columns:
        if not column.startswith("p:"):
            continue
        name = column.removeprefix("p:")
        cells = [None if pd.isna(v) else v for v in frame[column]]
        order = _order(name, frame[column].dtype)
        found = {v if _is_number(v) else str(v) for v in cells if v is not None}
        distinct = sorted(found, key=lambda value: place(value, order))
        if len(distinct) + (None in cells) < 2:
            constant[name] = distinct[0] if distinct else None
            continue
        numeric = all(map(_is_number, distinct))
        code = {v: float(v) if numeric else i for i, v in enumerate(distinct)}
        off = min(code.values()) - 1
        values[name] = [off if v is None else code[v if _is_number(v) else str(v)] for v in cells]
        inactive[name] = [v is None for v in cells]
        words[name] = {float(number): _word(v) for v, number in code.items()}
        types[name] = _type(distinct, bool(order))
    return Encoded(
        pd.DataFrame(values, index=frame.index, dtype=float),
        pd.DataFrame(inactive, index=frame.index, dtype=bool),
        words,
        constant,
        types,
    )


def _type(distinct: Sequence[Any], ordered: bool) -> str:
    """The type of a parameter with these values; ``ordered`` if its words are."""
    if not all(_is_number(v) for v in distinct):
        return "ordered" if ordered else "categorical"
    if len(distinct) <= DISCRETE:
        return "ordered"
    low, high = float(distinct[0]), float(distinct[-1])
    return "logarithmic" if low > 0 and high / low >= DECADES else "continuous"


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, np.bool_, np.number))


def _order(name: str, dtype: Any) -> Sequence[str]:
    """The order of a parameter's words: the space's, or a known one."""
    if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered:
        return [str(value) for value in dtype.categories]
    return _ORDERS.get(name, ())


def place(value: Any, order: Sequence[str] = ()) -> tuple[int, float, str]:
    """Key of a value among others: numbers by size, then words in their order, else by letters."""
    if _is_number(value):
        return 0, float(value), ""
    return 1, order.index(value) if value in order else len(order), str(value)


def _word(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if _is_number(value) and float(value).is_integer():
        return str(int(value))
    return f"{value:.4g}" if _is_number(value) else str(value)
