"""A cost model as it may be as well: its constants drawn from what is known of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analysis.cost.model import CostModel, of_engines
from analysis.cost.time_constants import TimeConstants


def drawn(model: CostModel, rng: np.random.Generator) -> CostModel:
    """The model with other constants of time, each engine's drawn by itself."""
    if model.others:
        return of_engines(drawn(one, rng) for one in model.engines)
    covariance = model.covariance
    if covariance is None:
        # Before any evidence the whole prior would draw machines that do not exist.
        covariance = np.diag((0.5 * TimeConstants.spreads()) ** 2)
    logs = rng.multivariate_normal(model.constants.logs(), covariance, method="eigh")
    return replace(model, constants=TimeConstants.from_logs(logs))
