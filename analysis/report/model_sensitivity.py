"""Sensitivity over the whole space by the calibrated cost model.

A guided search has few trials, close to the best one; a forest on them explains little. The model
that they calibrated, corrected by its residuals, predicts every other configuration. A forest is
fitted to these predictions, and SHAP explains the forest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.groups import MissingFactError
from analysis.cost.model import LIKELY
from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.pricing import SUCCESSES
from analysis.report.encoding import encode
from analysis.report.forests import NUM_REFITS, NotEnough, Sensitivity, fitted, folded
from analysis.report.outlook import Outlook

SAMPLED = 2_000  # configurations that likely fit, to which the forest is fitted
FEWEST = 8  # of them


@dataclass(frozen=True)
class ModelSensitivity:
    """Sensitivity of the objective over a space."""

    found: Sensitivity  # by a forest on predictions for configurations that likely fit
    trials: int  # measured ones that calibrated the model
    likely: float  # share of the valid configurations that likely fit
    # parameters that the cost model does not price; their effects come from measured trials alone
    unseen: tuple[str, ...]


def model_sensitivity(outlook: Outlook, seed: int = 0) -> ModelSensitivity:
    """Sensitivity of the objective over a run's space; the seed is that of the forests.

    Raises NotEnough if the model expects too few configurations to fit.
    """
    likely = outlook.fits >= LIKELY
    indices = outlook.indices[likely][:SAMPLED]
    if len(indices) < FEWEST:
        raise NotEnough(
            f"The cost model expects {len(indices)} of {likely.size} configurations to fit."
        )
    members = outlook.members(indices)
    try:
        target = outlook.objective(outlook.posterior(members))
    except MissingFactError as error:
        raise NotEnough(f"The cost model cannot predict it: {error}.") from error
    encoded = encode(outlook.frame(indices))
    if encoded.values.empty or np.ptp(target) == 0:
        raise NotEnough("The cost model expects the same of all configurations that likely fit.")

    space, rows = outlook.pricing.space, np.arange(len(target))
    draws = ((rows, outlook.objective(outlook.drawn(members))) for _ in range(NUM_REFITS))
    found = folded(fitted(encoded, target, seed, draws), space)
    unseen = tuple(n for n in unpriced_parameters(space) if n in encoded.values)
    return ModelSensitivity(
        found, min(SUCCESSES, len(outlook.observations.successes)), float(likely.mean()), unseen
    )
