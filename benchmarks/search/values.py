"""Acquisition rules for parameters that the cost model does not price, all else being known.

``python -m benchmarks.search.values`` plays the kernel and the data workers of ``varied.py``, and
effects as in drawn worlds, with the search's own residual process, and counts trials until one is
within 5 % of the best. Since only these values are unknown, a minute shows differences between
rules that searches of whole worlds cannot show.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from scipy.special import ndtr

from analysis.prediction.residual import ResidualProcess, kernel
from benchmarks.search.varied import KERNELS, WORKERS
from workflows.replay.play import NEAR

ROUNDS = 1000
RUN_LOG_SD = 0.01  # of runs of one configuration
LOG_SD = 0.15  # of the residual
LEVEL = 2.0  # deviation of the level common to all configurations, in residual deviations
LENGTH = 1.5  # length scale of the workers' kernel, in doublings
DRAWS = 500

Rule = Callable[["Known"], np.ndarray]


def features() -> np.ndarray:
    """A row of features for each pair of values; products of rows are prior covariances.

    The first column is the level that all pairs have in common, with a wide prior.
    """
    doublings = np.log2([[count] for count in WORKERS]) / LENGTH
    root = np.linalg.cholesky(kernel(doublings, doublings) + 1e-9 * np.eye(len(WORKERS)))
    return np.array([[LEVEL, *a, *b] for a, b in product(np.eye(len(KERNELS)), root)])


class Known:
    """The residual process after some trials."""

    def __init__(self, tried: list[int], left: list[float], rng: np.random.Generator) -> None:
        every = features()
        width, zero = every.shape[1], np.zeros((len(every), 1))
        every = np.concatenate([zero, every], axis=1)
        process = ResidualProcess(
            every[tried], np.array(left), LOG_SD, RUN_LOG_SD, width, robust=False
        )
        self.mean, self.deviation = process.at(every)
        self.covariance, self.best = process.covariance(every), max(left)
        self.tried, self.rng = tried, rng

    def untried_values(self) -> np.ndarray:
        pairs = [*product(range(len(KERNELS)), range(len(WORKERS)))]
        kernels, workers = ({pairs[at][side] for at in self.tried} for side in (0, 1))
        return np.array([a not in kernels or b not in workers for a, b in pairs])


def improvement(known: Known) -> np.ndarray:
    ahead, deviation = known.mean - known.best, known.deviation
    grown = np.exp(ahead + deviation**2 / 2) * ndtr(ahead / deviation + deviation)
    return np.asarray(grown - ndtr(ahead / deviation))


def untried_first(known: Known) -> np.ndarray:
    gain = improvement(known)
    first = known.untried_values() & (gain >= NEAR / 10)
    return np.where(first, gain + 10, gain)


def knowledge_gradient(known: Known) -> np.ndarray:
    """Expected increase of the highest posterior mean by a trial (Frazier et al. 2009)."""
    spread = known.covariance / np.sqrt(np.diag(known.covariance) + RUN_LOG_SD**2)
    normal = np.linspace(-2.2, 2.2, 23)
    weights = np.exp(-(normal**2) / 2)
    highest = (known.mean[:, None, None] + spread[:, :, None] * normal).max(axis=0)
    return np.asarray(highest @ weights)


def near_the_best(known: Known) -> np.ndarray:
    """Probability to be within 5 % of the best."""
    root = np.linalg.cholesky(known.covariance + 1e-8 * np.eye(len(known.mean)))
    drawn = known.mean + known.rng.standard_normal((DRAWS, len(root))) @ root.T
    return np.asarray((drawn >= drawn.max(axis=1, keepdims=True) + np.log(1 - NEAR)).mean(axis=0))


RULES: dict[str, Rule] = {
    "any order": lambda known: known.rng.random(len(known.mean)),
    "expected improvement": improvement,
    "the same, untried values first": untried_first,
    "knowledge gradient": knowledge_gradient,
    "probability to be near the best": near_the_best,
    "a bound of one deviation": lambda known: known.mean + known.deviation,
}


def effects(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of the speed of each pair of values; at most 0."""
    if kind == "judge":
        kernels, workers = np.log(rng.permutation([*KERNELS.values()])), np.log([*WORKERS.values()])
    else:  # as ``drawn`` has them
        kernels, workers = -rng.uniform(0, 0.35, len(KERNELS)), -rng.uniform(0, 0.2, len(WORKERS))
    speeds = (kernels[:, None] + workers).ravel()
    return np.asarray(speeds - speeds.max())


def trials(rule: Rule, kind: str, seed: int) -> int:
    """Number of trials until one is within 5 % of the best."""
    rng = np.random.default_rng(seed)
    speeds = effects(kind, rng)
    level = LEVEL * LOG_SD * rng.standard_normal()
    at, tried, left = int(rng.integers(len(speeds))), [], []
    while speeds[at] < np.log(1 - NEAR):
        tried.append(at)
        left.append(float(level + speeds[at] + RUN_LOG_SD * rng.standard_normal()))
        value = rule(Known(tried, left, rng))
        value[tried] = -np.inf
        at = int(np.argmax(value))
    return len(tried) + 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.values", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    rounds = parser.parse_args(argv).rounds
    print(
        "| rule | effects of the judge: geometric mean, mean | as in drawn worlds |\n|---|---|---|"
    )
    for name, rule in RULES.items():
        texts = []
        for kind in ("judge", "drawn"):
            taken = np.array([trials(rule, kind, seed) for seed in range(rounds)])
            texts.append(f"{np.exp(np.log(taken).mean()):.2f}, {taken.mean():.2f}")
        print(f"| {name} | {' | '.join(texts)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
