"""A cost model as it may be as well: constants and network drawn from what is known of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analysis.cost.model import CostModel, of_engines
from analysis.cost.network import Network
from analysis.cost.time_constants import TimeConstants


def drawn(model: CostModel, rng: np.random.Generator) -> CostModel:
    """The model with other constants of time and one network, each engine's drawn by itself."""
    if model.others:
        return of_engines(drawn(one, rng) for one in model.engines)
    covariance = model.covariance
    if covariance is None:
        # Before any evidence the whole prior would draw machines that do not exist.
        covariance = np.diag((0.5 * TimeConstants.spreads()) ** 2)
    logs = rng.multivariate_normal(model.constants.logs(), covariance, method="eigh")
    # How often a network is crowded is one fact of it: not of each run, nor the mean of beliefs.
    one = rng.choice(len(model.network.nodes), 1, p=model.network.weights)
    network = Network(model.network.nodes[one], np.ones(1))
    return replace(model, constants=TimeConstants.from_logs(logs), network=network)
