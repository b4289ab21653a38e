"""What the calibrated cost model says of which parameters matter, over a whole space.

A guided search ends after a few trials, gathered around the best: a forest on them explains little.
The model that they have calibrated, with what it still leaves of them, says what every other
configuration would reach. A forest learns that, and SHAP explains the forest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import units
from analysis.cost.groups import MissingFactError
from analysis.cost.jobs import Array
from analysis.cost.model import CostModel, Prediction
from analysis.prediction.drawn_model import drawn
from analysis.prediction.pricing import Pricing, unpriced_parameters
from analysis.prediction.residual import ResidualProcess, features, unpriced_features
from analysis.report.encoding import encode
from analysis.report.forests import (
    MAX_LEAVES,
    NUM_REFITS,
    NUM_TREES,
    NotEnough,
    Refit,
    Sensitivity,
    fitted,
)
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Candidates, Indices, SearchSpace

PRICED = 20_000  # valid configurations of which those that likely fit are sought
LEARNT = 2_000  # of them that a forest learns from
FEWEST = 8
LIKELY = 0.5  # probability to fit
TAUGHT = 200  # trials from which model and residual learn: the latest


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
    space, rng = pricing.space, np.random.default_rng(seed)
    key = space.objective.key
    if not pricing.prices(key):
        raise NotEnough(f"The cost model does not predict {key}.")
    candidates = candidates or Candidates(space)
    indices = candidates.indices(PRICED, rng, [], max_nodes=2**31)
    told = pricing.teaching(t for _, t in sorted(run.trials.items()) if t.ended)[-TAUGHT:]
    model = pricing.calibrated(told)
    jobs = pricing.jobs(space.columns(candidates.columns(indices)), len(indices))
    likely = model.fits(jobs) >= LIKELY
    indices = indices[likely][:LEARNT]
    if len(indices) < FEWEST:
        raise NotEnough(
            f"The cost model expects {len(indices)} of {likely.size} configurations to fit."
        )
    told = [t for t in told if t.ok and (t.objective or 0.0) > 0]
    expectation = _Expectation(pricing, candidates, indices, told)
    try:
        target = expectation.of(model)
    except MissingFactError as error:
        raise NotEnough(f"The cost model cannot predict it: {error}.") from error
    frame = _frame(space, candidates, indices)
    encoded = encode(frame)
    if encoded.values.empty or np.ptp(target) == 0:
        raise NotEnough("The cost model expects the same of all configurations that likely fit.")
    from sklearn.ensemble import RandomForestRegressor  # slow to import

    def draws() -> Iterable[Refit]:
        rows = np.arange(len(target))
        for _ in range(NUM_REFITS):
            yield rows, expectation.of(drawn(model, rng))

    forest = RandomForestRegressor(NUM_TREES, max_leaf_nodes=MAX_LEAVES, oob_score=True)
    found = fitted(forest, encoded, target, seed, draws())
    unseen = tuple(n for n in unpriced_parameters(space) if n in encoded.values)
    return ModelSensitivity(found, len(told), float(likely.mean()), unseen)


class _Expectation:
    """What models expect of configurations once the trials have corrected them.

    Args:
        pricing: of the space; its model says how far it was off before any trial.
        candidates: whose indices are meant.
        indices: of the configurations.
        told: successes with a positive objective.
    """

    def __init__(
        self, pricing: Pricing, candidates: Candidates, indices: Indices, told: list[Trial]
    ) -> None:
        space = pricing.space
        self._pricing = pricing
        self._sign = 1.0 if space.objective.maximize else -1.0
        columns = candidates.columns(indices)
        self._jobs = pricing.jobs(space.columns(columns), len(indices))
        self._features = features(self._jobs, unpriced_features(space, columns, len(indices)))
        rows = [space.raw(t.config) for t in told]
        raw = {name: np.array([row[name] for row in rows]) for name in space.parameters}
        self._logs = np.log([t.objective or np.nan for t in told])
        if told:
            self._own = pricing.jobs(space.columns(raw), len(told))
            self._own_features = features(self._own, unpriced_features(space, raw, len(told)))

    def of(self, model: CostModel) -> Array:
        """The objective of every configuration, in the unit in which it is shown."""
        logs = self._log(model.predict(self._jobs))
        if len(self._logs):
            left = self._sign * (self._logs - self._log(model.predict(self._own)))
            residual = ResidualProcess(self._own_features, left, self._pricing.model.log_sd)
            logs = logs + self._sign * residual.at(self._features)[0]
        return np.asarray(np.exp(logs) * units.scaled(self._pricing.space.objective.key, 1.0))

    def _log(self, prediction: Prediction) -> Array:
        figure = self._pricing.objective(prediction)
        assert figure is not None  # model_sensitivity has asked
        return np.asarray(np.log(figure))


def _frame(space: SearchSpace, candidates: Candidates, indices: Indices) -> pd.DataFrame:
    """The configurations as ``load`` gives those of trials."""
    configs = [space.canonical(raw) for raw in candidates.configs(indices)]
    frame = pd.DataFrame([{f"p:{k}": v for k, v in config.items()} for config in configs])
    for parameter in space.parameters.values():
        if parameter.ordered:
            words = [str(value) for value in parameter.values]
            frame[f"p:{parameter.name}"] = pd.Categorical(
                frame[f"p:{parameter.name}"], words, ordered=True
            )
    return frame
