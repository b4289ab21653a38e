"""A parameter and its values: a list of them, or the grid of an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foundation.documents import as_written
from foundation.values import Scalar
from trainer.plan.annotations import OtherNames, grouped
from trainer.plan.axes.mesh import FURTHER_AXES
from trainer.plan.fields import Choices, OtherChoices
from trainer.plan.rules.expression import ValueType

FINEST, COARSEST = 1001, 101
"""Points of a grid: 0.1 % of the interval apart, or 1 % if the space is too large otherwise."""
SEARCHABLE = tuple(Choices.model_fields)
BUILTIN_NAMES = ("num_nodes", *SEARCHABLE)
AXES = tuple(FURTHER_AXES)
"""Parameters that split the world whether or not a space names them as axes."""
LENGTHS = {
    *("packing", "neat_packing", "sample_packing", "pack", "packed", "padding", "padding_free"),
    *("pad_to_max_length", "pad_to_multiple_of", "group_by_length", "max_length", "seq_length"),
    *("max_seq_length", "max_seq_len", "cutoff_len", "sequence_len", "block_size"),
}
"""Names of parameters that change how many tokens the sequences of a step have."""
_ENDINGS = ("", "_size", "_degree", "_world_size")
USUAL_NAMES = {
    stem + ending: name
    for record in (Choices, OtherChoices)
    for other, names in grouped(record, OtherNames).items()
    for name, stem, ending in product(names, other.names.split(), _ENDINGS)
}
"""Names of parameters in spaces, by the names that frameworks use."""


@dataclass(frozen=True)
class Span:
    """Any number from ``low`` to ``high``.

    Configurations are numbered (``SearchSpace.raw_columns``), so policies draw from a grid. It is
    so fine that neighbouring points train alike, and its numbers are rounded to a hundredth of a
    step. A configuration from elsewhere may have any number in between.
    """

    low: float
    high: float  # both ends belong to the interval
    log: bool = False  # numbers are evenly spaced by their logarithm
    whole: bool = False  # only whole numbers
    points: int = FINEST  # of the grid; fewer where whole numbers would repeat

    @cached_property
    def grid(self) -> tuple[float, ...]:
        """Numbers of the grid, ascending."""
        return tuple(self._counted[0].tolist())

    @property
    def shares(self) -> NDArray[np.float64]:
        """Number of the grid's points that each number stands for.

        It is 1 except for whole numbers: many points of a logarithmic grid round to a small one.
        """
        return self._counted[1].astype(np.float64)

    @cached_property
    def _counted(self) -> tuple[NDArray[np.float64], NDArray[np.int_]]:
        even = np.geomspace if self.log else np.linspace
        points = even(self.low, self.high, self.points)
        if self.whole:
            points = np.round(points)
        else:
            steps = np.diff(points)
            places = 2 - np.floor(np.log10(np.append(steps, steps[-1]))).astype(int)
            points = np.array([round(x, p) for x, p in zip(points, places.tolist(), strict=True)])
        points[0], points[-1] = self.low, self.high
        numbers, counts = np.unique(points, return_counts=True)
        return (numbers.astype(np.int64) if self.whole else numbers), counts

    def place(self, value: float) -> int:
        """Index of the nearest number of the grid, on the interval's own scale."""
        grid = np.asarray(self.grid, dtype=np.float64)
        if self.log:
            grid, value = np.log(grid), math.log(value)
        return int(np.argmin(np.abs(grid - value)))

    def unit(self, value: float) -> float:
        """Position of a number from ``low`` (0) to ``high`` (1), on the interval's own scale."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return self.low <= value <= self.high and (not self.whole or float(value).is_integer())

    def __str__(self) -> str:
        """Text such as ``1e-05 to 0.01``."""
        return f"{self.low:g} to {self.high:g}" if not self.whole else f"{self.low} to {self.high}"

    def as_file(self) -> dict[str, object]:
        """The interval as a space file states it."""
        ends = [self.low, self.high]
        key = "int" if self.whole else "float"
        return {key: ends, "log": True} if self.log else {key: ends}


@dataclass(frozen=True)
class Parameter:
    """A name and the values it may take, in the order of the space file."""

    name: str
    values: tuple[Scalar, ...]  # values that policies draw; of a continuous parameter the grid
    span: Span | None = None  # the interval of a continuous parameter
    # what the file states on the values' order: True for words with one, False for numbers without
    # one. None: numbers have an order, words and truth values have none
    ordered: bool | None = None

    @property
    def value_type(self) -> ValueType:
        return value_type_of(self.values[0])

    @property
    def pinned(self) -> Scalar:
        """The value that stands for "inactive" in a raw configuration."""
        return self.values[0]

    @cached_property
    def array(self) -> np.ndarray:
        """The values as ``column`` gives them."""
        return self.column(self.values)

    def column(self, values: Any) -> np.ndarray:
        """Values as a numpy array of float64, bool or str."""
        array = np.asarray(values)
        if self.value_type == "number":
            return array.astype(np.float64)
        return array.astype(bool if self.value_type == "boolean" else str)

    def member(self, value: Any) -> Scalar:
        """The value of this parameter that equals ``value`` (of any numeric type).

        Raises ValueError if there is none.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if self.span is not None:
            if value in self.span:
                return int(value) if self.span.whole else float(value)
            kind = "whole numbers" if self.span.whole else "numbers"
            raise ValueError(
                f"{self.name}: found {as_written(value)}, accepted {kind} from {self.span}"
            )
        for own in self.values:
            if own == value and isinstance(own, bool) == isinstance(value, bool):
                return own
        accepted = ", ".join(as_written(v) for v in self.values[:20])
        more = ", ..." if len(self.values) > 20 else ""
        raise ValueError(f"{self.name}: found {as_written(value)}, accepted {accepted}{more}")

    @property
    def varies(self) -> bool:
        return len(self.values) > 1

    @cached_property
    def shares(self) -> np.ndarray | None:
        """Weights with which values are drawn; None: all equal."""
        shares = None if self.span is None else self.span.shares
        return None if shares is None or np.all(shares == 1) else shares

    def drawn(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Random values, weighted by ``shares``."""
        shares = None if self.shares is None else self.shares / self.shares.sum()
        return np.array(self.values)[rng.choice(len(self.values), count, p=shares)]

    def place(self, value: Scalar) -> int:
        """Index of a value; of the nearest one if the parameter is continuous."""
        if self.span is None:
            return self.values.index(value)
        return self.span.place(float(value)) if self.varies else 0

    def unit(self, value: Scalar) -> float:
        """Position of a value from the first (0) to the last (1), by the interval or by index."""
        if self.span is not None:
            return self.span.unit(float(value))
        return self.place(value) / max(1, len(self.values) - 1)

    def as_file(self) -> Any:
        """The shortest way to write it in a space file."""
        if self.span is not None:
            return self.span.as_file()
        values = list(self.values)
        if self.ordered is not None:
            return {"ordered" if self.ordered else "categories": values}
        return values[0] if len(values) == 1 else values


def value_type_of(value: Scalar) -> ValueType:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"
