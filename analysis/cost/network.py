"""A network's states: a run meets it calm or crowded, and nobody can tell before it runs.

In a crowded run every micro-batch waits for every neighbour of a stage, so that the same
configuration takes one of two times. How often that happens is not a fact of a kind of machine: it
is believed, as a set of hypotheses with weights, and every run is evidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.constants import Array, log_odds
from search_spaces import Cluster
from trainer.plan.jobs import Jobs

# Share of networks without such a state, of a framework that was not seen to meet it: by the rule
# of succession after eleven other networks that published pipelines crossed, all of them calm.
NEVER = 12 / 13
NODES = 30.0  # at which 63 % of the runs are crowded, where there is such a state
NODES_LOG_SD = 0.7
MOST_RUNS = 20.0  # of evidence: runs of one campaign are not independent
_WIDE = 2.0  # nodes: pipelines whose tensor parallelism spans more were always crowded
_ALWAYS = 0.98
_CERTAIN = 6.0  # logarithm of the odds of a state, at most, that one run's time tells
_GRID = np.linspace(-2.0, 2.0, 9)
_FAR = 4.0  # standard deviations, beyond which no end of an interval is looked for
_HALVINGS = 30


@dataclass(frozen=True)
class Network:
    """Hypotheses: each pair of nodes brings the state with one chance, whatever the others do."""

    nodes: Array  # at which 63 % of runs are crowded; shape (h,). ``inf`` is never
    weights: Array  # of each, which sum to 1

    @classmethod
    def known(cls, never: float, nodes: float = NODES, log_sd: float = NODES_LOG_SD) -> Network:
        """Hypotheses around one, beside that of no such state, which has the weight ``never``."""
        shares = np.exp(-0.5 * _GRID**2)
        shares *= (1 - never) / shares.sum()
        return cls(np.append(nodes * np.exp(log_sd * _GRID), np.inf), np.append(shares, never))

    @property
    def never(self) -> float:
        """Probability that no run is ever crowded."""
        return float(self.weights[np.isinf(self.nodes)].sum())

    def crowded(self, jobs: Jobs, cluster: Cluster) -> Array:
        """Probability that a run of each job is crowded; shape (n,)."""
        # Few numbers of nodes in many jobs: each is asked once.
        nodes, where = np.unique(
            jobs.layout.world_size / cluster.gpus_per_node, return_inverse=True
        )
        chance = self._chance(nodes)
        piped = (self.weights @ chance)[where]
        whole = (self.weights @ chance**3)[where]
        return _by_form(jobs, cluster, piped, whole, _ALWAYS * (1 - self.never))

    def after(self, jobs: Jobs, cluster: Cluster, told: Array) -> Network:
        """The hypotheses after runs with log Bayes factors ``told``, (n,), of a crowded network."""
        odds = np.exp(np.clip(told, -_CERTAIN, _CERTAIN))
        each = np.log1p(self._each(jobs, cluster) * (odds - 1)).sum(axis=1)
        logs = np.log(self.weights) + each * min(1.0, MOST_RUNS / max(len(jobs), 1))
        weights = np.exp(logs - logs.max())
        return Network(self.nodes, weights / weights.sum())

    def _each(self, jobs: Jobs, cluster: Cluster) -> Array:
        """By hypothesis; shape (h, n)."""
        chance = self._chance(jobs.layout.world_size / cluster.gpus_per_node)
        sure = np.where(np.isinf(self.nodes)[:, None], 0.0, _ALWAYS)
        return _by_form(jobs, cluster, chance, chance**3, sure)

    def _chance(self, nodes: Array) -> Array:
        """Probability for a pipeline on so many nodes; shape (h, n)."""
        return np.asarray(-np.expm1(-np.square(nodes / self.nodes[:, None])))


def _by_form(
    jobs: Jobs, cluster: Cluster, piped: Array, whole: Array, sure: Array | float
) -> Array:
    """The chance of a pipeline; of one as wide as ``_WIDE``; or of a job without one, which waits
    hardly ever, but in networks that are crowded all over."""
    wide = jobs.layout.tp > _WIDE * cluster.gpus_per_node
    return np.where(jobs.layout.pp > 1, np.where(wide, sure, piped), np.where(wide, 0.0, whole))


UNKNOWN = Network.known(NEVER)  # the prior of a network on which nothing ran


def likelier(calm: Array, late: Array, chance: Array, noise: float) -> Array:
    """Each run's residual in the network state that it was more probably in.

    ``calm``, ``late``: logarithms of predicted over measured times in either state, of which
    ``noise`` is the deviation. ``chance``: of a crowded one, before the run.
    """
    with np.errstate(divide="ignore"):
        before = np.log(chance) - np.log1p(-chance)
    return np.where(log_odds(calm, late, noise) > -before, late, calm)


def expected_state(chance: Array, calm_s: Array, more_s: Array) -> Array:
    """1 where a crowded network is to be expected of a run, 0 where a calm one is.

    The state that more of the throughput is expected from: it minimizes the relative error. A step
    takes ``calm_s`` in a calm one, ``more_s`` longer in a crowded one.
    """
    return np.asarray(chance * calm_s > (1 - chance) * (calm_s + more_s), np.float64)


def quantile(
    share: float, calm: Array, late: Array, chance: Array, spread: tuple[Array, Array]
) -> Array:
    """Logarithms of times below which this share of the runs is, of a job that may be crowded.

    In a state times spread around its own, to either side of it as far as ``spread`` says.
    """
    from scipy.special import ndtr  # slow to import

    down, up = spread
    low, high = calm - _FAR * down, late + _FAR * up
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        of_calm, of_late = (
            ndtr((middle - state) / np.where(middle < state, down, up)) for state in (calm, late)
        )
        below = of_calm + chance * (of_late - of_calm) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)
