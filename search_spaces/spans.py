"""Continuous parameters: an interval of numbers, and the grid on which policies draw from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FINEST, COARSEST = 1001, 101
"""Points of a grid: a step of 0.1 % of the interval, or of 1 % where many have to be numbered."""


@dataclass(frozen=True)
class Span:
    """Any number from ``low`` to ``high``.

    Configurations are numbered (``SearchSpace.raw_columns``), so policies draw from a grid. It is
    fine enough that the next point would train alike, and its numbers are short: rounded to a
    hundredth of a step. A configuration from elsewhere may have any number in between.

    Attributes:
        low: the first number, and
        high: the last one; both belong to the interval.
        log: numbers are evenly spaced by their logarithm.
        whole: only whole numbers.
        points: of the grid; fewer where whole numbers would repeat.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False
    points: int = FINEST

    @cached_property
    def grid(self) -> tuple[float, ...]:
        """Numbers of the grid, ascending."""
        return tuple(self._counted[0].tolist())

    @property
    def shares(self) -> NDArray[np.float64]:
        """Share of the interval that each number of the grid stands for, relative to one point's.

        1, but for whole numbers: a small one stands for many points of a logarithmic grid.
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
