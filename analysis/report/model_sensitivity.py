"""What the calibrated cost model says of which parameters matter, over a whole space.

A guided search ends after a few trials, gathered around the best: a forest on them explains little.
The model that they have calibrated, with what it still leaves of them, says what every other
configuration would reach. A forest learns that, and SHAP explains the forest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analysis.cost.groups import MissingFactError
from analysis.cost.model import LIKELY
from analysis.prediction.columns import unpriced_parameters
from analysis.prediction.pricing import Pricing
from analysis.report.encoding import encode
from analysis.report.folding import folded, parents
from analysis.report.forests import (
    NUM_REFITS,
    NotEnough,
    Refit,
    Sensitivity,
    fitted,
)
from analysis.report.outlook import Outlook
from analysis.run.fold import Run
from search_spaces import Candidates

LEARNT = 2_000  # configurations that likely fit, from which a forest learns
FEWEST = 8


@dataclass(frozen=True)
class ModelSensitivity:
    """A model's account of the objective over a space.

    Attributes:
        found: by a forest on what it expects of configurations that likely fit.
        trials: measured ones that it has learnt from.
        likely: share of the valid configurations that likely fit.
        unseen: parameters in which the cost model sees no difference; what is said of them comes
            from the measured trials alone.
    """

    found: Sensitivity
    trials: int
    likely: float
    unseen: tuple[str, ...]


def model_sensitivity(
    run: Run, pricing: Pricing, seed: int = 0, candidates: Candidates | None = None
) -> ModelSensitivity:
    """What drives the objective over a run's space, as far as the cost model knows.

    Args:
        run: whose trials calibrate it.
        pricing: of the run's space, not calibrated.
        seed: of the configurations that are drawn, the constants and the forests.
        candidates: the configurations that there are; default all valid ones.

    Raises:
        NotEnough: the model does not predict the objective, or expects too few to fit.
    """
    return sensitivity_of(Outlook(run, pricing, seed, candidates), seed)


def sensitivity_of(outlook: Outlook, seed: int = 0) -> ModelSensitivity:
    """The same of an outlook on the space; the seed is that of the forests."""
    likely = outlook.fits >= LIKELY
    indices = outlook.indices[likely][:LEARNT]
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

    def draws() -> Iterable[Refit]:
        rows = np.arange(len(target))
        for _ in range(NUM_REFITS):
            yield rows, outlook.objective(outlook.drawn(members))

    space = outlook.pricing.space
    found = folded(fitted(encoded, target, seed, draws()), parents(space))
    unseen = tuple(n for n in unpriced_parameters(space) if n in encoded.values)
    return ModelSensitivity(
        found, len(outlook.observations.successes), float(likely.mean()), unseen
    )
