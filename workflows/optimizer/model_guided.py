"""The search guided by the cost model: its ranking first, corrected by what was measured.

A proposal is computed from the journal alone. The cost model is calibrated with every trial told,
a Gaussian process learns what is left of the logarithm of the objective, and the configuration
with the greatest upper confidence bound, weighed by the probability that it runs, comes next. While
other trials run, the model's constants are drawn from what they may be instead, so that a batch is
the favourites of differently wrong models and not eight neighbours of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis import (
    LIKELY,
    NOISE_LOG_SD,
    Array,
    CostModel,
    Prediction,
    Pricing,
    ResidualProcess,
    Run,
    Trial,
    counted,
    drawn,
    features,
    in_time,
    positive,
    residual_log_sd,
    survival,
    unpriced_features,
)
from search_spaces import FRAMEWORKS, Candidates, Indices
from slurm import FAILURES
from workflows.optimizer.expected_gain import (
    ExpectedGain,
    expected_gain,
    improvement,
    most_promising,
)
from workflows.optimizer.model_trust import foresees, surprised, trusted
from workflows.optimizer.scalarization import Scalarization, merits, reached, spread_ranks
from workflows.optimizer.variants import Variants

PRICED = 300_000  # configurations of a space that are priced at the start
SHORTLIST = 8_000  # of them that stay in the race
CALIBRATED_WITH = 200  # trials: the best and the latest
KAPPA = 0.25  # deviations above the mean at which a candidate is valued: curiosity
GAIN_TRIALS = 5  # successes, before what is left to gain can be said
SETTLED = 16  # successes, before what hardly fits is tried for what it would gain


@dataclass(frozen=True)
class Suggestion:
    """A chosen candidate and what is expected of it."""

    index: int
    why: str
    expected: dict[str, float]


class ModelGuidedSearch:
    """Chooses among a space's candidates by the cost model.

    Args:
        pricing: of the space; its model is where every calibration starts from.
        candidates: valid configurations.
        seed: of the shortlist.
    """

    def __init__(self, pricing: Pricing, candidates: Candidates, seed: int) -> None:
        self._pricing, self._candidates = pricing, candidates
        self._space = pricing.space
        rng = np.random.default_rng(seed)
        indices = candidates.indices(PRICED, rng, [], max_nodes=2**31)
        prediction = self._predict(pricing.model, indices)
        ends = prediction.fits * in_time(self._space, prediction)
        promise = self._overall(prediction) + np.log(np.maximum(ends, 1e-9))
        order = np.argsort(-promise, kind="stable")
        if len(order) > SHORTLIST:
            # Some of the rest as well, should the model have it all wrong.
            some = rng.choice(order[SHORTLIST:], min(SHORTLIST // 8, len(order) - SHORTLIST), False)
            order = np.concatenate([order[:SHORTLIST], some])
        self._indices: Indices = indices[order]
        self._jobs = prediction.jobs[order]
        self._nodes = prediction.num_nodes[order]
        unpriced = unpriced_features(
            self._space, candidates.columns(self._indices), len(self._indices)
        )
        self._features, self._unpriced = features(self._jobs, unpriced), unpriced.shape[1]
        self._variants = Variants(candidates, self._indices)
        self._calibrations: dict[tuple[int, ...], CostModel] = {}

    def trusted(self, run: Run) -> bool:
        """Whether the model may go on choosing."""
        return trusted(run, self._pricing)

    def suggest(
        self,
        run: Run,
        max_nodes: int,
        rng: np.random.Generator,
        known: Run | None = None,
        weights: Array | None = None,
    ) -> Suggestion | None:
        """The next candidate; None if the shortlist has none that is new and narrow enough.

        Args:
            run: what is learnt from.
            max_nodes: the widest trial that may come.
            rng: the source of what is drawn.
            known: whose trials may not come again; default those of ``run``.
            weights: of the objectives, where there are several.
        """
        free = self._free(known or run, max_nodes)
        if not len(free):
            return None
        told = [t for t in run.trials.values() if t.ended]
        calibrated = model = self._calibrated(told)
        rule = "highest confidence bound"
        if len(told) < len(run.trials):
            model, rule = drawn(model, rng), "favourite of one of several models"
        prediction = model.predict(self._jobs[free])
        successes = [t for t in told if t.ok and positive(t)]
        aim = None if weights is None else self._aim(weights, prediction, successes)
        residual = self._residual(model, successes, run, aim)
        shift, deviation = residual.at(self._features[free])
        at_most = self._at_most(residual, successes, free, aim)
        mean = np.minimum(self._log_promise(prediction, aim) + shift, at_most)
        ends = prediction.fits * in_time(self._space, prediction)
        runs = np.maximum(ends, 1e-12) * self._survival(model, told, free)
        curiosity = KAPPA * deviation + residual.untried(self._features[free])
        bound, new = mean + curiosity + np.log(runs), np.isinf(at_most)
        others = bool((new & (runs > LIKELY)).any())  # degrees that are worth a trial
        if aim is None and run.best and positive(run.best) and others:
            gains = improvement(mean, deviation, np.ones(len(free)), self._log_objective(run.best))
            bound[~new & (gains < self._space.budget.expected_gain)] = -np.inf
        at = int(np.argmax(bound))
        # A model that does not foresee its trials cannot say what is left to gain.
        enough = self._variants.enough(successes) or not others
        foreseen = len(successes) >= GAIN_TRIALS and enough and foresees(run)
        foreseen = foreseen and not surprised(run, self._space.objective.maximize)
        judged = aim is None and foreseen and run.best and positive(run.best)
        best = run.best if judged else None
        if best and self._habits_known and len(successes) >= SETTLED:
            gains = improvement(mean, deviation, runs, self._log_objective(best))
            # What the search would end for is not worth a trial while another one is.
            if gains[at] < self._space.budget.expected_gain <= gains.max():
                at, rule = int(np.argmax(gains)), "greatest expected gain"
        log = mean[at] if aim is None else self._log_promise(prediction)[at]
        scale = 1.0 if aim is None else aim.scale
        edges = residual.edges(float(deviation[at]))
        expected = self._interval(float(log), edges[0] / scale, edges[1] / scale)
        expected["fits"] = float(runs[at])
        if best:
            gain = self._gain(calibrated, residual, free, runs, at_most, run, rng)
            expected |= {"gain": gain.next, "left": gain.left}
        after = counted(len(successes), "success") if told else "no trial yet"
        return Suggestion(
            int(self._indices[free[at]]), f"{rule}, cost model after {after}", expected
        )

    @property
    def _habits_known(self) -> bool:
        """Whether a record says what the framework keeps, and so what is likely to fit at all."""
        return self._space.program.framework in FRAMEWORKS

    def _free(self, known: Run, max_nodes: int) -> Indices:
        """Places in the shortlist of what is new and narrow enough."""
        proposed = self._candidates.indices_of([t.config for t in known.trials.values()])
        new = ~np.isin(self._indices, proposed) & (self._nodes <= max_nodes)
        return np.flatnonzero(new)

    def _interval(self, log: float, worse: float, better: float) -> dict[str, float]:
        """The objective that is expected of a candidate, and its 95 % interval.

        Args:
            log: its expected logarithm, more being better.
            worse, better: how far from it the interval's edges are.
        """
        maximize = self._space.objective.maximize
        objective = float(np.exp(log if maximize else -log))
        below, above = (worse, better) if maximize else (better, worse)
        low, high = float(objective * np.exp(-below)), float(objective * np.exp(above))
        return {"objective": objective, "low": low, "high": high}

    # ---- what the model says ----

    def _predict(self, model: CostModel, indices: Indices) -> Prediction:
        facts = self._space.columns(self._candidates.columns(indices))
        return model.predict(self._pricing.jobs(facts, len(indices)))

    def _log_promise(self, prediction: Prediction, aim: Scalarization | None = None) -> Array:
        """By which candidates rank: the first objective's logarithm, or how near to an aim."""
        if aim is not None:
            return aim.value(self._merits(prediction))
        return np.asarray(np.log(self._pricing.promise(prediction)))

    def _log_objective(self, trial: Trial, aim: Scalarization | None = None) -> float:
        """The same of what was measured."""
        if aim is not None:
            objectives = self._space.objectives
            return float(aim.value(merits(objectives, reached(objectives, [trial])))[0])
        log = float(np.log(trial.objective or np.nan))
        return log if self._space.objective.maximize else -log

    def _overall(self, prediction: Prediction) -> Array:
        """What a candidate promises to the search as a whole, whatever its weights."""
        if not self._space.more_objectives:
            return self._log_promise(prediction)
        return -np.log(spread_ranks(self._merits(prediction)))

    def _merits(self, prediction: Prediction) -> Array:
        figures = self._pricing.figures(prediction)
        assert figures is not None  # the proposer has seen to it
        return merits(self._space.objectives, figures)

    def _aim(
        self, weights: Array, prediction: Prediction, successes: Sequence[Trial]
    ) -> Scalarization:
        """Where these weights point to, among what was reached and what is likely to run."""
        likely = self._merits(prediction)[prediction.fits > 0.5]
        objectives = self._space.objectives
        known = np.concatenate([likely, merits(objectives, reached(objectives, successes))])
        uncertain = [objective.key != "num_nodes" for objective in objectives]
        return Scalarization.from_weights(
            weights, known if len(known) else self._merits(prediction), uncertain
        )

    def _calibrated(self, told: Sequence[Trial]) -> CostModel:
        # Of many trials the latest few change little: every twentieth part more is enough.
        step = max(1, len(told) // 20)
        told = sorted(told, key=lambda t: (t.ended_t or 0.0, t.number))[: len(told) // step * step]
        if len(told) > CALIBRATED_WITH:
            ranked = sorted(told, key=lambda t: -self._log_objective(t) if positive(t) else np.inf)
            told = [*ranked[: CALIBRATED_WITH // 2], *told[-CALIBRATED_WITH // 2 :]]
        key = tuple(sorted({t.number for t in told}))
        if key not in self._calibrations:
            by_number = {t.number: t for t in told}
            self._calibrations = {key: self._pricing.calibrated(by_number.values())}
        return self._calibrations[key]

    # ---- what it does not know ----

    def _gain(
        self,
        model: CostModel,
        residual: ResidualProcess,
        free: Indices,
        runs: Array,
        at_most: Array,
        run: Run,
        rng: np.random.Generator,
    ) -> ExpectedGain:
        """What the candidates ``free`` are expected to gain over the best trial."""
        assert run.best is not None
        there = self._features[free]
        shift, deviation = residual.at(there)
        mean = np.minimum(self._log_promise(model.predict(self._jobs[free])) + shift, at_most)
        first = most_promising(mean, deviation, runs)
        return expected_gain(
            mean[first],
            residual.covariance(there[first]),
            runs[first],
            self._log_objective(run.best),
            1 + sum(not t.ended for t in run.trials.values()),
            rng,
        )

    def _residual(
        self,
        model: CostModel,
        successes: Sequence[Trial],
        run: Run,
        aim: Scalarization | None = None,
    ) -> ResidualProcess:
        """What the model leaves at any candidate, from what it left of the successes."""
        scale = 1.0 if aim is None else aim.scale
        log_sd = scale * residual_log_sd(run, self._pricing.model.log_sd)
        if not successes:
            none = self._features[:0]
            return ResidualProcess(none, np.zeros(0), log_sd, unpriced=self._unpriced)
        successes = successes[-CALIBRATED_WITH:]
        own = self._pricing.jobs_of([t.config for t in successes])
        logs = np.array([self._log_objective(t, aim) for t in successes])
        left = logs - self._log_promise(model.predict(own), aim)
        there, noise = self._features_of(successes), scale * NOISE_LOG_SD
        return ResidualProcess(there, left, log_sd, noise, self._unpriced)

    def _at_most(
        self,
        residual: ResidualProcess,
        successes: Sequence[Trial],
        free: Indices,
        aim: Scalarization | None,
    ) -> Array:
        """What the candidates ``free`` are at most, by what was measured of their variants."""
        successes = successes[-CALIBRATED_WITH:]
        return self._variants.at_most(
            free,
            residual.effects(self._features[free]),
            successes,
            residual.effects(self._features_of(successes)),
            np.array([self._log_objective(t, aim) for t in successes]),
        )

    def _survival(self, model: CostModel, told: Sequence[Trial], free: Indices) -> Array:
        """Probability of no failure that memory does not explain, from the failures so far."""
        failed = [t for t in told if t.kind in FAILURES][-CALIBRATED_WITH:]
        if not failed:
            return np.ones(len(free))
        # What the model expects to run out of memory says nothing more when it does.
        memory = [t.kind in self._pricing.memory_failures for t in failed]
        fits = model.predict(self._pricing.jobs_of([t.config for t in failed])).fits
        return survival(
            self._features[free],
            self._features_of(failed),
            np.where(memory, fits, 1.0),
            self._features_of([t for t in told if t.ok][-CALIBRATED_WITH:]),
        )

    def _features_of(self, trials: Sequence[Trial]) -> Array:
        if not trials:
            return self._features[:0]
        rows = [self._space.raw(t.config) for t in trials]
        raw = {name: np.array([row[name] for row in rows]) for name in self._space.parameters}
        unpriced = unpriced_features(self._space, raw, len(rows))
        return features(self._pricing.jobs(self._space.columns(raw), len(rows)), unpriced)
