"""Metrics of predictions. Pure functions; an undefined metric is nan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import spearmanr

from trainer.plan.jobs import Array, Mask

TOP = 8
LEAST_ROWS = 4  # fewer runs have no meaningful ranking
TEN = 10  # Singh et al. 2024, V-B: how many of the ten ranked first are among the ten fastest
CLOSE = 0.05  # of the true best
BINS = (0.0, 0.02, 0.2, 0.5, 0.8, 0.98, 1.0)  # of the probability to fit
SHUFFLES = 50  # of rows with equal predictions


def relative_errors(predicted: ArrayLike, measured: ArrayLike) -> Array:
    """|predicted / measured - 1| of the rows that have both."""
    p, m = np.asarray(predicted, float), np.asarray(measured, float)
    both = np.isfinite(p) & np.isfinite(m) & (m > 0)
    return np.asarray(np.abs(p[both] / m[both] - 1))


def covered(low: ArrayLike, high: ArrayLike, measured: ArrayLike) -> float:
    """Share of the rows whose measurement is in its interval; nan without any."""
    low, high, m = (np.asarray(values, float) for values in (low, high, measured))
    known = np.isfinite(low) & np.isfinite(high) & np.isfinite(m) & (m > 0)
    return mean((low[known] <= m[known]) & (m[known] <= high[known]))


def interval_score(low: ArrayLike, high: ArrayLike, measured: ArrayLike) -> float:
    """Score of 95 % intervals by width and by distance of rows outside of them: less is better.

    The mean over rows, in logarithms, of the width plus 2 / 5 % times the distance outside; the
    true 95 % interval minimizes it (Gneiting and Raftery 2007, equation 43).
    """
    with np.errstate(divide="ignore"):
        a, b, m = (np.log(np.asarray(values, float)) for values in (low, high, measured))
    return mean(b - a + 2 / 0.05 * (np.maximum(a - m, 0) + np.maximum(m - b, 0)))


def mean(values: ArrayLike) -> float:
    """The mean of the finite values; nan without any."""
    v = np.asarray(values, float)
    v = v[np.isfinite(v)]
    return float(v.mean()) if v.size else float("nan")


def median(values: ArrayLike) -> float:
    """The median of the finite values; nan without any."""
    v = np.asarray(values, float)
    v = v[np.isfinite(v)]
    return float(np.median(v)) if v.size else float("nan")


def spearman(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Spearman's rank correlation; rows that tie share their mean rank.

    0 where the prediction is the same for all rows; nan with fewer than two rows, or where all
    measurements are equal.
    """
    p, m = _rounded(predicted), np.asarray(measured, float)
    both = np.isfinite(p) & np.isfinite(m)
    a, b = p[both], m[both]
    if a.size < 2 or np.ptp(b) == 0:
        return float("nan")
    return float(spearmanr(a, b).statistic) if np.ptp(a) > 0 else 0.0


def _rounded(values: ArrayLike) -> Array:
    """Values to nine digits, so that sums in another order still tie."""
    v = np.asarray(values, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = 10.0 ** (np.floor(np.log10(np.abs(v))) - 8)
        return np.where(np.isfinite(unit) & (unit > 0), np.round(v / unit) * unit, v)


def order(predicted: ArrayLike, fits: ArrayLike, random: np.random.Generator) -> NDArray[np.int64]:
    """Rows in the order in which a search would try them.

    Those that are predicted to fit come first, fastest first; then the others, the most probable to
    fit first. Without a predicted probability (nan) a row counts as fitting. Rows with equal
    predictions are shuffled.
    """
    p, f = _rounded(predicted), np.asarray(fits, float)
    f = np.where(np.isfinite(f), f, 1.0)
    pruned = f < 0.5
    return np.lexsort((random.random(p.size), p, np.where(pruned, -f, 0.0), pruned))


def regret(predicted: ArrayLike, fits: ArrayLike, measured: ArrayLike, tries: int) -> float:
    """Share of the true best that the best of the first tries loses; 1 if none of them runs.

    The mean over orders of rows with equal predictions.

    Args:
        predicted: times.
        fits: probabilities that a row runs; nan where not predicted.
        measured: times; nan for rows that failed.
        tries: how many are run.
    """
    m = np.asarray(measured, float)
    if not np.isfinite(m).any():
        return float("nan")
    random = np.random.default_rng(0)
    missed = []
    for _ in range(SHUFFLES):
        tried = m[order(predicted, fits, random)[:tries]]
        tried = tried[np.isfinite(tried)]
        missed.append(1 - np.nanmin(m) / tried.min() if tried.size else 1.0)
    return float(np.mean(missed))


def ten_of_ten(predicted: ArrayLike, fits: ArrayLike, measured: ArrayLike) -> float:
    """Number of the ten ranked first among the ten fastest; nan below twenty that ran.

    Singh et al. 2024, section V-B, find nine of ten. As with ``regret``, rows with equal
    predictions are shuffled; failed rows are not among the fastest.
    """
    m = np.asarray(measured, float)
    if np.isfinite(m).sum() < 2 * TEN:
        return float("nan")
    fastest = np.argsort(np.where(np.isfinite(m), m, np.inf), kind="stable")[:TEN]
    random = np.random.default_rng(0)
    found = [np.isin(order(predicted, fits, random)[:TEN], fastest).sum() for _ in range(SHUFFLES)]
    return float(np.mean(found))


@dataclass(frozen=True)
class Ranking:
    """Quality of the ranking of one landscape.

    Attributes:
        landscape: its key.
        rows: configurations, failed ones included.
        spearman: over those that ran.
        regret_1: share of the true best that is lost by running only the first.
        regret_top: likewise by running the first eight.
        ten: how many of the ten ranked first are among the ten fastest; nan where few ran.
    """

    landscape: str
    rows: int
    spearman: float
    regret_1: float
    regret_top: float
    ten: float


def rankings(
    landscape: NDArray[np.str_], predicted: Array, fits: Array, measured: Array
) -> Iterator[Ranking]:
    """The ranking of each landscape in which enough configurations ran.

    Args:
        landscape: key of each row.
        predicted, measured: times that can be compared within a landscape.
        fits: probability that a row runs; nan where not predicted.
    """
    for key in np.unique(landscape):
        rows = landscape == key
        p, f, m = predicted[rows], fits[rows], measured[rows]
        if np.isfinite(m).sum() < LEAST_ROWS or not np.isfinite(p).any():
            continue
        yield Ranking(
            str(key),
            int(rows.sum()),
            spearman(p, m),
            regret(p, f, m, 1),
            regret(p, f, m, TOP),
            ten_of_ten(p, f, m),
        )


@dataclass(frozen=True)
class Fitting:
    """Quality of the predicted probability to run.

    Attributes:
        accuracy: share of rows that are predicted correctly.
        caught: share of the failed rows that are predicted to fail.
        wrongly_pruned: share of the rows that ran that are predicted to fail.
        reliability: for each of ``BINS``: rows, their mean probability, and the share that ran.
    """

    accuracy: float
    caught: float
    wrongly_pruned: float
    reliability: tuple[tuple[int, float, float], ...]


def fitting(fits: Array, failed: Mask) -> Fitting:
    """Scores of rows whose probability to fit is predicted."""
    known = np.isfinite(fits)
    stated, lost = fits[known], failed[known]
    pruned = stated < 0.5
    found = np.digitize(stated, BINS[1:-1])
    reliability = tuple(
        (int((found == i).sum()), mean(stated[found == i]), mean(~lost[found == i]))
        for i in range(len(BINS) - 1)
    )
    return Fitting(mean(pruned == lost), mean(pruned[lost]), mean(pruned[~lost]), reliability)
