"""A parameter and its values: a list of them, or the grid of an interval."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from foundation.documents import as_written
from foundation.values import Scalar
from search_spaces.spans import Span
from trainer.plan.annotations import OtherNames, grouped
from trainer.plan.axes.mesh import FURTHER_AXES
from trainer.plan.fields import Choices, OtherChoices
from trainer.plan.rules.expression import ValueType

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

"""Names in spaces of parameters, by what frameworks call them."""


@dataclass(frozen=True)
class Parameter:
    """A name and the values it may take, in the order of the space file.

    Attributes:
        name: of the parameter.
        values: that policies draw; of a continuous parameter the grid.
        span: the interval of a continuous parameter.
        ordered: whether the values' order is said by the file: of words that they have one, of
            numbers that they have none. None: numbers have one, words and truth values have none.
    """

    name: str
    values: tuple[Scalar, ...]
    span: Span | None = None
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
        """Values as a numpy column: float64, bool or str."""
        array = np.asarray(values)
        if self.value_type == "number":
            return array.astype(np.float64)
        return array.astype(bool if self.value_type == "boolean" else str)

    def member(self, value: Any) -> Scalar:
        """The value of this parameter that equals ``value`` (of any numeric type).

        Raises:
            ValueError: if there is none.
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
        """Weights with which values are drawn; None: all alike."""
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

    def nearest(self, value: Scalar) -> Scalar:
        """The value that stands for it among ``values``."""
        return self.values[self.place(value)]

    def unit(self, value: Scalar) -> float:
        """Position of a value from the first (0) to the last (1), by its scale or its index."""
        if self.span is not None:
            return self.span.unit(float(value))
        return self.place(value) / max(1, len(self.values) - 1)

    def held(self) -> Parameter:
        """The same at one value: a continuous one still takes any for it."""
        return replace(self, values=self.values[:1])

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
