"""Pareto fronts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def non_dominated(points: Array) -> NDArray[np.bool_]:
    """Mask of rows that no other row dominates (as good in every column, better in one).

    ``points`` has shape (n, k); more is better in every column. Of equal rows all are kept.
    """
    kept = np.ones(len(points), dtype=bool)
    # A dominating row has a greater sum: in this order good rows come first and remove many.
    for row in np.argsort(-points.sum(axis=1), kind="stable"):
        if kept[row]:
            dominated = (points <= points[row]).all(axis=1) & (points < points[row]).any(axis=1)
            kept &= ~dominated
    return kept
