"""Policies that the cost model guides: its ranking first, corrected by what was measured.

It guides a search if it can price the space and its objectives. If it cannot, or the search's own
residuals show that it is wrong, DeepHyper's Bayesian optimization takes over, with all observations
so far.

A proposal is computed from the journal alone: the posterior after all completed trials, and the
candidate with the highest acquisition. While other trials run, the model's constants are drawn from
their posterior, so that a batch holds the best of several plausible models, not eight neighbours of
one model's best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from analysis import (
    CandidateSet,
    Goal,
    MissingFactError,
    Observations,
    Posterior,
    Pricing,
    Run,
    acquisition,
    expected_gain,
    trusted,
)
from foundation.quantities import counted
from search_spaces import Candidates
from trainer.plan.jobs import Array, Indices
from workflows.optimizer.builtin import LikelyToRun
from workflows.optimizer.deephyper import DeepHyperOptimizer
from workflows.optimizer.policy import Policy, Problem, Proposal

NUM_VALUES = 2_000  # combinations of continuous values, among which DeepHyper chooses


class ContinuousPart:
    """The continuous parameters of a problem that its cost model does not price.

    It has no price for a learning rate or a buffer size, and no list of candidates holds all their
    values. So the model chooses among configurations with these held at one value, and DeepHyper,
    which sees every trial, picks the continuous values for the chosen configuration.

    Attributes:
        names: of these parameters; empty if the problem lists its configurations.
        candidates: the problem's, with these parameters held at one value.
    """

    def __init__(self, problem: Problem, optimizer: DeepHyperOptimizer) -> None:
        space = problem.space
        unpriced = problem.pricing.unpriced if problem.pricing else []
        continuous = [n for n in unpriced if space.parameters[n].span is not None]
        self.names = tuple(continuous) if problem.only is None else ()
        held = space.holding(self.names)
        self.candidates = Candidates(held) if self.names else problem.candidates
        self._space, self._optimizer = space, optimizer

    def completed(
        self,
        config: Mapping[str, Any],
        run: Run,
        rng: np.random.Generator,
        weights: Array | None = None,
    ) -> tuple[dict[str, Any], str] | None:
        """A raw configuration with values of the continuous parameters, and who chose them.

        None if no drawn value makes it valid and new. ``weights`` are of several objectives.
        """
        columns: dict[str, Any] = {n: np.repeat([v], NUM_VALUES) for n, v in config.items()}
        for name in self.names:
            columns[name] = self._space.parameters[name].drawn(NUM_VALUES, rng)
        rows = np.flatnonzero(self._space.valid(columns))
        lists = {name: column[rows].tolist() for name, column in columns.items()}
        proposed = {tuple(self._space.raw(t.config).items()) for t in run.trials.values()}
        some = [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
        new = [raw for raw in some if tuple(raw.items()) not in proposed]
        if not new:
            return None
        raw, by, why = self._optimizer.choose(run, new, rng, weights)
        return raw, f"{', '.join(self.names)} {by}, {why}"


class MeshtunePolicy(Policy):
    """The cost model while it can be trusted, then Bayesian optimization."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._optimizer = DeepHyperOptimizer(problem.space)

    def propose(self, run: Run, max_nodes: int) -> Proposal | None:
        shortlist = self._shortlist
        guides = shortlist is not None and self._trusts(shortlist.pricing, run)
        if shortlist and guides and (guided := self._guided(shortlist, run, max_nodes)):
            return guided
        proposal = self._alone.propose(run, max_nodes)
        if proposal and shortlist and not guides:
            return replace(proposal, why=proposal.why + "; the cost model was wrong here")
        return proposal

    def _guided(self, shortlist: CandidateSet, run: Run, max_nodes: int) -> Proposal | None:
        """The model's choice; DeepHyper sets continuous parameters without a price."""
        rng, space, rest = self.problem.rng(run), self.problem.space, self._continuous
        weights, towards = self.problem.weights(run)
        if rest.names and (again := self._best_again(run, max_nodes)):
            completed = rest.completed(again, run, rng)
            if completed:
                raw, why = completed
                return Proposal(space.canonical(raw), "bayesian", f"the best's degrees; {why}")
        rows = shortlist.untried(run, max_nodes)
        if not len(rows):
            return None
        config, why, expected = self._best_of(shortlist, rows, self._learned(run), rng, weights)
        why += towards
        if rest.names:
            completed = rest.completed(config, run, rng, weights)
            if completed is None:
                return None
            config, chosen = completed
            why += f"; {chosen}"
            # The model cannot predict what these values gain, so not when to stop, either.
            expected = {k: v for k, v in expected.items() if k not in ("gain", "left")}
        return Proposal(space.canonical(config), "cost model", why, expected)

    def _best_of(
        self,
        shortlist: CandidateSet,
        rows: Indices,
        run: Run,
        rng: np.random.Generator,
        weights: Array | None,
    ) -> tuple[dict[str, Any], str, dict[str, float]]:
        """The best raw configuration of these ``rows``, why, and what is expected of it.

        The model learns from ``run``; ``weights`` are of several objectives.
        """
        pricing, observations = shortlist.pricing, Observations.of(run)
        calibrated = model = observations.calibrated(pricing)
        rule, pending = "highest acquisition", len(run.trials) - len(observations.completed)
        if pending:
            model, rule = model.drawn(rng), "best under one of several models"
        goal = Goal(pricing)
        if weights is not None:
            prediction = model.predict(shortlist.jobs[rows])
            goal = goal.towards(weights, prediction, observations.successes)
        posterior = Posterior(shortlist, model, observations, rows, goal)
        best = run.best if goal.single and run.best and run.best.positive else None
        at = int(np.argmax(acquisition(posterior, best)))
        expected = posterior.interval(at) | {"fits": float(posterior.feasibility[at])}
        if pricing.space.subject_to:
            expected["holds"] = float(posterior.satisfaction[at])
        if best and (gain := expected_gain(posterior, best, 1 + pending, calibrated, rng)):
            expected |= gain
        learned = "no trial yet"
        if observations.completed:
            learned = counted(len(observations.successes), "success")
        if pricing.start:
            learned += f", started from {pricing.start}"
        [config] = shortlist.candidates.configs(shortlist.indices[rows[[at]]])
        return config, f"{rule}, cost model after {learned}", expected

    def _best_again(self, run: Run, max_nodes: int) -> dict[str, Any] | None:
        """The best trial's configuration, every other time once DeepHyper has enough successes."""
        successes = sum(t.objective is not None for t in run.trials.values())
        if run.best is None or self.problem.space.more_objectives or len(run.trials) % 2 == 0:
            return None
        wide = self.problem.space.num_nodes(run.best.config) > max_nodes
        enough = successes >= self._optimizer.num_initial
        return self.problem.space.raw(run.best.config) if enough and not wide else None

    def _trusts(self, pricing: Pricing, run: Run) -> bool:
        return trusted(run, pricing)

    def _learned(self, run: Run) -> Run:
        """The run from which the model learns."""
        return run

    @cached_property
    def _alone(self) -> LikelyToRun:
        """DeepHyper, for when the model does not choose."""
        return LikelyToRun(self.problem)

    @cached_property
    def _continuous(self) -> ContinuousPart:
        return ContinuousPart(self.problem, self._optimizer)

    @cached_property
    def _shortlist(self) -> CandidateSet | None:
        """The model's candidates; None if it cannot choose.

        Made at the first proposal: a run that is only looked at needs no prices. Every calibration
        starts from the model of its ``pricing``.
        """
        pricing, objectives = self.problem.pricing, self.problem.space.objectives
        if pricing is None or not all(pricing.prices(each.key) for each in objectives):
            return None  # measurements alone say what is best, or where the front is
        try:
            candidates = self._continuous.candidates
            return CandidateSet.shortlist(pricing.supposing(), candidates, self.problem.seed)
        except MissingFactError:  # such as the network, which only some configurations need
            return None


class CostModelPolicy(MeshtunePolicy):
    """The cost model's ranking, never corrected."""

    def _trusts(self, pricing: Pricing, run: Run) -> bool:
        return True

    def _learned(self, run: Run) -> Run:
        return Run(run.directory)
