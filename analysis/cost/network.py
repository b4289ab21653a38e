"""States of a network: calm or congested ("crowded" in the code), known only by a run's time.

On a congested network every micro-batch waits at every neighbour of a stage, so that the same
configuration takes one of two times. How often that happens does not follow from the type of
machine: it is a distribution over hypotheses, which every run updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.constants import Array, log_odds
from search_spaces import Cluster
from trainer.plan.jobs import Jobs

# Prior probability that a network never congests, for a framework that has not been seen to suffer
# from it: rule of succession after eleven networks that published pipelines crossed, all calm.
NEVER = 12 / 13
NODES = 30.0  # at which 63 % of the runs are congested, on a network that congests at all
NODES_LOG_SD = 0.7
MOST_RUNS = 20.0  # that count as evidence: runs of one campaign are not independent
_WIDE = 2.0  # nodes: pipelines whose tensor parallelism spans more were always congested
_ALWAYS = 0.98
_CERTAIN = 6.0  # bound on one run's log Bayes factor
_GRID = np.linspace(-2.0, 2.0, 9)
_FAR = 4.0  # standard deviations around both states within which quantiles are searched
_HALVINGS = 30


@dataclass(frozen=True)
class Network:
    """Hypotheses: every pair of nodes congests a run independently with the same probability."""

    nodes: Array  # by hypothesis: at which 63 % of runs are congested; shape (h,). ``inf`` is never
    weights: Array  # of each, which sum to 1

    @classmethod
    def known(cls, never: float, nodes: float = NODES, log_sd: float = NODES_LOG_SD) -> Network:
        """Log-normal hypotheses around ``nodes``, and with weight ``never`` no congestion ever."""
        shares = np.exp(-0.5 * _GRID**2)
        shares *= (1 - never) / shares.sum()
        return cls(np.append(nodes * np.exp(log_sd * _GRID), np.inf), np.append(shares, never))

    @property
    def never(self) -> float:
        """Probability that the network never congests."""
        return float(self.weights[np.isinf(self.nodes)].sum())

    def crowded(self, jobs: Jobs, cluster: Cluster) -> Array:
        """Probability that a run of each job is congested; shape (n,)."""
        # Many jobs share few numbers of nodes: each is computed once.
        nodes, where = np.unique(
            jobs.layout.world_size / cluster.gpus_per_node, return_inverse=True
        )
        chance = self._chance(nodes)
        piped = (self.weights @ chance)[where]
        whole = (self.weights @ chance**3)[where]
        return _by_form(jobs, cluster, piped, whole, _ALWAYS * (1 - self.never))

    def after(self, jobs: Jobs, cluster: Cluster, log_factors: Array) -> Network:
        """The posterior after runs, by their log Bayes factors of a congested network, (n,)."""
        odds = np.exp(np.clip(log_factors, -_CERTAIN, _CERTAIN))
        piped = self._chance(jobs.layout.world_size / cluster.gpus_per_node)
        sure = np.where(np.isinf(self.nodes)[:, None], 0.0, _ALWAYS)
        crowded = _by_form(jobs, cluster, piped, piped**3, sure)  # by hypothesis; shape (h, n)
        each = np.log1p(crowded * (odds - 1)).sum(axis=1)
        logs = np.log(self.weights) + each * min(1.0, MOST_RUNS / max(len(jobs), 1))
        weights = np.exp(logs - logs.max())
        return Network(self.nodes, weights / weights.sum())

    def _chance(self, nodes: Array) -> Array:
        """Probability that a pipeline on so many nodes is congested; shape (h, n)."""
        return np.asarray(-np.expm1(-np.square(nodes / self.nodes[:, None])))


def _by_form(
    jobs: Jobs, cluster: Cluster, piped: Array, whole: Array, sure: Array | float
) -> Array:
    """Probability of congestion: ``piped`` for a pipeline, ``sure`` for one with tensor parallelism
    over more than ``_WIDE`` nodes, ``whole`` without one: small unless ``piped`` is near 1."""
    wide = jobs.layout.tp > _WIDE * cluster.gpus_per_node
    return np.where(jobs.layout.pp > 1, np.where(wide, sure, piped), np.where(wide, 0.0, whole))


UNKNOWN = Network.known(NEVER)  # the prior of a network on which nothing ran


def likelier(calm: Array, late: Array, chance: Array, noise: float) -> Array:
    """Each run's residual in the more probable state of the network.

    ``calm``, ``late``: logarithms of predicted over measured times in either state, with standard
    deviation ``noise``. ``chance``: prior probability of a congested network.
    """
    with np.errstate(divide="ignore"):
        before = np.log(chance) - np.log1p(-chance)
    return np.where(log_odds(calm, late, noise) > -before, late, calm)


def expected_state(chance: Array, calm_s: Array, more_s: Array) -> Array:
    """1 where a prediction should assume a congested network, 0 where a calm one.

    It assumes the state that contributes more to the expected throughput, which minimizes the
    relative error. A step takes ``calm_s`` on a calm network, ``more_s`` longer on a congested one.
    """
    return np.asarray(chance * calm_s > (1 - chance) * (calm_s + more_s), np.float64)


def quantile(
    share: float, calm: Array, late: Array, chance: Array, spread: tuple[Array, Array]
) -> Array:
    """Quantile ``share`` of the logarithms of a job's times, over both states of the network.

    In each state the logarithms are normal around ``calm`` or ``late``, with the standard
    deviations ``spread`` downwards and upwards.
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
