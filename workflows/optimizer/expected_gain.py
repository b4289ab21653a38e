"""What further trials are expected to gain over the best so far: the search's stop rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis import Array

DRAWS = 256
NUM_CONSIDERED = 256  # candidates that may gain something worth counting


@dataclass(frozen=True)
class ExpectedGain:
    """Shares of the best objective so far.

    Attributes:
        next: that the next batch is expected to add.
        left: that all candidates together are: what a search that stops leaves on the table.
    """

    next: float
    left: float


def improvement(mean: Array, deviation: Array, runs: Array, best: float) -> Array:
    """What each candidate alone is expected to gain, as a share of the best objective so far.

    The objective is log-normal; see :func:`expected_gain` for the arguments.
    """
    from scipy.special import ndtr  # slow to import

    over = (mean - best) / deviation
    reached = np.exp(mean - best + deviation**2 / 2) * ndtr(over + deviation)
    return np.asarray(runs * np.maximum(reached - ndtr(over), 0.0))


def most_promising(mean: Array, deviation: Array, runs: Array) -> np.ndarray:
    """Indices of the candidates by which :func:`expected_gain` is computed."""
    return np.argsort(-(mean + 2 * deviation + np.log(runs)), kind="stable")[:NUM_CONSIDERED]


def expected_gain(
    mean: Array, covariance: Array, runs: Array, best: float, batch: int, rng: np.random.Generator
) -> ExpectedGain:
    """The mean over draws of what all candidates could be.

    Args:
        mean: of the logarithm of each candidate's objective, more being better; shape (m,).
        covariance: of the same; shape (m, m).
        runs: probability that a candidate runs at all.
        best: logarithm of the best objective so far.
        batch: trials that run at once.
        rng: of the draws.
    """
    drawn = rng.multivariate_normal(mean, covariance, DRAWS, method="eigh")
    over = np.where(rng.random(drawn.shape) < runs, np.expm1(np.maximum(drawn - best, 0.0)), 0.0)
    batch = min(batch, len(mean))
    chosen = np.argsort(-over.mean(axis=0), kind="stable")[:batch]
    return ExpectedGain(float(over[:, chosen].max(axis=1).mean()), float(over.max(axis=1).mean()))
