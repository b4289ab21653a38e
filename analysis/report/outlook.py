"""What a calibrated cost model expects of a space's configurations, most of which nobody has run.

The model that a run's trials have calibrated, corrected by what it still leaves of them, is asked
about up to PRICED valid configurations. The report's views of the whole space start from here.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis import units
from analysis.cost.model import CostModel, Prediction
from analysis.prediction.foretold import residual_log_sd
from analysis.prediction.pricing import Pricing
from analysis.prediction.residual import ResidualProcess, features, survival, unpriced_features
from analysis.report.forests import NotEnough
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import Candidates, Indices
from slurm import FAILURES
from trainer.plan.jobs import Array

PRICED = 20_000  # valid configurations that are asked about
LIKELY = 0.5  # probability to fit
TAUGHT = 200  # trials from which model and residual learn: the latest


class Outlook:
    """The model after a run's trials, and the configurations that it is asked about.

    Args:
        run: whose trials calibrate it.
        pricing: of the run's space, not calibrated.
        seed: of the configurations that are drawn, and of what else is drawn later.
        candidates: the configurations that there are; default all valid ones.

    Attributes:
        model: calibrated.
        told: successes that it has learnt from.
        log_sd: what the model is off, in logarithms, as the search has it.
        indices: of the configurations, in random order.
        fits: probability of each to fit; shape (n,).
        num_nodes: that each needs; shape (n,).

    Raises:
        NotEnough: the model does not predict the objective.
    """

    def __init__(
        self, run: Run, pricing: Pricing, seed: int = 0, candidates: Candidates | None = None
    ) -> None:
        key = pricing.space.objective.key
        if not pricing.prices(key):
            raise NotEnough(f"The cost model does not predict {key}.")
        self.run, self.pricing = run, pricing
        self.rng = np.random.default_rng(seed)
        self.candidates = candidates or Candidates(pricing.space)
        self.indices = self.candidates.indices(PRICED, self.rng, [], max_nodes=2**31)
        told = pricing.teaching(t for _, t in sorted(run.trials.items()) if t.ended)[-TAUGHT:]
        self.model = pricing.calibrated(told)
        self.told = [t for t in told if t.ok and (t.objective or 0.0) > 0]
        self.log_sd = residual_log_sd(run, pricing.model.log_sd)
        columns = pricing.space.columns(self.candidates.columns(self.indices))
        self.fits = self.model.fits(pricing.jobs(columns, len(self.indices)))
        self.num_nodes = np.broadcast_to(columns.columns["num_nodes"], self.indices.shape)

    def expectation(self, indices: Indices) -> Expectation:
        """Of some of the configurations."""
        return Expectation(self.pricing, self.candidates, indices, self.told, self.log_sd)

    def frame(self, indices: Indices) -> pd.DataFrame:
        """Some of the configurations as ``load`` gives those of trials."""
        space, columns = self.pricing.space, self.candidates.columns(indices)
        active, shown = space.columns(columns).active, {}
        for name, parameter in space.parameters.items():
            values = columns[name].astype(object)
            if name in active:
                if not np.any(active[name]):
                    continue
                values = np.where(active[name], values, None)
            if parameter.ordered:
                words = [str(value) for value in parameter.values]
                values = pd.Categorical(values, words, ordered=True)
            shown[f"p:{name}"] = values
        return pd.DataFrame(shown)


class Expectation:
    """What models expect of configurations once the trials have corrected them.

    Args:
        pricing: of the space.
        candidates: whose indices are meant.
        indices: of the configurations.
        told: successes with a positive objective.
        log_sd: what the model is off, in logarithms.

    Attributes:
        features: of the configurations; shape (n, k).
    """

    def __init__(
        self,
        pricing: Pricing,
        candidates: Candidates,
        indices: Indices,
        told: list[Trial],
        log_sd: float,
    ) -> None:
        space = pricing.space
        self._pricing, self._log_sd = pricing, log_sd
        self._sign = 1.0 if space.objective.maximize else -1.0
        columns = candidates.columns(indices)
        self._jobs = pricing.jobs(space.columns(columns), len(indices))
        unpriced = unpriced_features(space, columns, len(indices))
        self.features, self._unpriced = features(self._jobs, unpriced), unpriced.shape[1]
        self._logs = np.log([t.objective or np.nan for t in told])
        if told:
            self._own = pricing.jobs_of([t.config for t in told])
        self._own_features = self._features_of(told)

    def of(self, model: CostModel, rng: np.random.Generator | None = None) -> Array:
        """The objective of every configuration, in the unit in which it is shown.

        Args:
            model: calibrated, or with other constants.
            rng: draws which trials were slow by chance and which because of their configurations;
                default what is most probable.
        """
        logs = self._log(model.predict(self._jobs))
        if len(self._logs):
            logs = logs + self._sign * self._residual(model, rng).at(self.features)[0]
        return np.asarray(np.exp(logs) * units.scaled(self._pricing.space.objective.key, 1.0))

    def doubted(self, model: CostModel) -> tuple[Prediction, Array, Array, ResidualProcess]:
        """The prediction, with mean and deviation of the logarithm of the objective.

        Logarithms are such that more is better; the residual has their intervals.
        """
        prediction, residual = model.predict(self._jobs), self._residual(model)
        shift, deviation = residual.at(self.features)
        return prediction, self._sign * self._log(prediction) + shift, deviation, residual

    def survival(self, model: CostModel, run: Run) -> Array:
        """Probability of no failure that memory does not explain, by what failed nearby."""
        failed = [t for t in run.trials.values() if t.kind in FAILURES][-TAUGHT:]
        if not failed:
            return np.ones(len(self.features))
        memory = [t.kind in self._pricing.memory_failures for t in failed]
        fits = model.fits(self._pricing.jobs_of([t.config for t in failed]))
        return survival(
            self.features, self._features_of(failed), np.where(memory, fits, 1.0),
            self._own_features,
        )  # fmt: skip

    def _residual(
        self, model: CostModel, rng: np.random.Generator | None = None
    ) -> ResidualProcess:
        left = np.zeros(0)
        if len(self._logs):
            left = self._sign * (self._logs - self._log(model.predict(self._own)))
        return ResidualProcess(
            self._own_features, left, self._log_sd, unpriced=self._unpriced, rng=rng
        )

    def _features_of(self, trials: list[Trial]) -> Array:
        if not trials:
            return self.features[:0]
        space, rows = self._pricing.space, [self._pricing.space.raw(t.config) for t in trials]
        raw = {name: np.array([row[name] for row in rows]) for name in space.parameters}
        jobs = self._pricing.jobs(space.columns(raw), len(rows))
        return features(jobs, unpriced_features(space, raw, len(rows)))

    def _log(self, prediction: Prediction) -> Array:
        figure = self._pricing.objective(prediction)
        assert figure is not None  # the outlook has asked
        return np.asarray(np.log(figure))
