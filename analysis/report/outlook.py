"""Expectations for a run's whole space, most of which was not run.

The posterior after the run's trials, evaluated at up to PRICED valid configurations. The report's
views of the whole space start from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis import units
from analysis.cost.model import LIKELY
from analysis.prediction.acquisition import remaining_deviation
from analysis.prediction.candidate_set import CandidateSet
from analysis.prediction.goodput import Goodput
from analysis.prediction.posterior import Observations, Posterior
from analysis.prediction.pricing import Pricing
from analysis.report.forests import NotEnough
from analysis.run.fold import Run
from search_spaces import Candidates
from trainer.plan.jobs import Array, Indices

PRICED = 20_000  # valid configurations that are evaluated
CONSIDERED = 2_000  # configurations that likely run, among which the least known is sought
DRAWS = 8  # of the model's constants


class Outlook:
    """The calibrated model of a run, and configurations of its space.

    The run's trials calibrate ``pricing``; ``seed`` seeds all draws; ``candidates`` default to all
    valid configurations. ``indices`` of n of them are in random order; ``fits`` are their predicted
    probabilities to fit, ``num_nodes`` the nodes that each needs; shape (n,).

    Raises NotEnough if the model does not predict the objective.
    """

    def __init__(
        self, run: Run, pricing: Pricing, seed: int = 0, candidates: Candidates | None = None
    ) -> None:
        key = pricing.space.objective.key
        if not pricing.prices(key):
            raise NotEnough(f"The cost model does not predict {key}.")
        self.run, self.pricing = run, pricing.supposing()
        self.rng = np.random.default_rng(seed)
        self.candidates = candidates or Candidates(pricing.space)
        self.indices = self.candidates.indices(PRICED, self.rng, [], max_nodes=2**31)
        self.observations = Observations.of(run)
        self.model = self.observations.calibrated(self.pricing)
        every = self.members(self.indices)
        self.fits, self.num_nodes = self.model.fits(every.jobs), every.num_nodes

    def kept(self, config: Mapping[str, Any]) -> Goodput:
        """Goodput of a configuration in a run of weeks."""
        failures = self.pricing.failures.learned(self.pricing.space, self.run.trials.values())
        return failures.goodput(self.model.predict(self.pricing.jobs_of([config])))

    @cached_property
    def shortlist(self) -> CandidateSet:
        """The configurations that the run's search chooses among."""
        return CandidateSet.shortlist(self.pricing, self.candidates, self.run.seed)

    def members(self, indices: Indices) -> CandidateSet:
        return CandidateSet(self.pricing, self.candidates, indices)

    def posterior(self, members: CandidateSet, rows: Indices | None = None) -> Posterior:
        """The posterior over configurations; see ``Posterior``."""
        return Posterior(members, self.model, self.observations, rows)

    def drawn(self, members: CandidateSet) -> Posterior:
        """The same with drawn constants of the model, and a draw of which trials were disturbed."""
        model = self.model.drawn(self.rng)
        return Posterior(members, model, self.observations, rng=self.rng)

    def least_known(self, max_nodes: int) -> tuple[dict[str, Any], float, dict[str, float]] | None:
        """The raw configuration whose goal is least known among those that likely run, the
        deviation of its goal, and the prediction for its trial.

        The deviation includes the spread over drawn constants and drawn disturbed trials. Goals of
        pending trials count as known. None if nothing untried on up to ``max_nodes`` likely runs.
        """
        trials = self.run.trials.values()
        tried = self.candidates.indices_of([t.config for t in trials])
        narrow = self.num_nodes <= max_nodes
        new = narrow & (self.fits >= LIKELY) & ~np.isin(self.indices, tried)
        indices = self.indices[new][:CONSIDERED]
        if not len(indices):
            return None
        pending = self.candidates.indices_of([t.config for t in trials if not t.ended])
        members = self.members(np.concatenate([indices, pending]))
        posterior = self.posterior(members)
        runs = posterior.feasibility[: len(indices)]
        if not np.any(runs >= LIKELY):
            return None
        others = np.array([self.drawn(members).mean for _ in range(DRAWS)])
        unknown = np.hypot(posterior.deviation, np.std(others, axis=0))
        left = remaining_deviation(posterior.residual, members.features, others, len(indices))
        at = int(np.argmax(np.where(runs >= LIKELY, left, -np.inf)))
        expected = posterior.interval(at, float(unknown[at])) | {"fits": float(runs[at])}
        [config] = self.candidates.configs(indices[[at]])
        return config, float(unknown[at]), expected

    def objective(self, posterior: Posterior) -> Array:
        """Expected objective of a posterior's configurations, in the unit shown."""
        unit = units.scaled(self.pricing.space.objective.key, 1.0)
        return posterior.goal.objective(posterior.mean) * unit

    def frame(self, indices: Indices) -> pd.DataFrame:
        """Configurations in the columns in which ``load`` gives those of trials."""
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
