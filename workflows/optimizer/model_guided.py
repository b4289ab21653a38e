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
    Array,
    CostModel,
    Pricing,
    Run,
    Trial,
    drawn,
    positive,
)
from foundation.quantities import counted
from search_spaces import FRAMEWORKS, Candidates
from workflows.optimizer.belief import REMEMBERED, Belief, Evidence
from workflows.optimizer.goal import Goal
from workflows.optimizer.model_trust import foresees, surprised, trusted
from workflows.optimizer.shortlist import Shortlist

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
        self._pricing, self._space = pricing, pricing.space
        self._shortlist = Shortlist(pricing, candidates, seed)
        self._first = Goal(pricing)
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
        places = self._shortlist.free(known or run, max_nodes)
        if not len(places):
            return None
        evidence = Evidence.of(run)
        calibrated = model = self._calibrated(evidence.told)
        rule, pending = "highest confidence bound", len(run.trials) - len(evidence.told)
        if pending:
            model, rule = drawn(model, rng), "favourite of one of several models"
        goal = self._first
        if weights is not None:
            prediction = model.predict(self._shortlist.jobs[places])
            goal = goal.towards(weights, prediction, evidence.successes)
        belief = Belief(self._shortlist, self._pricing, model, goal, evidence, places)
        best = run.best if goal.single and run.best and positive(run.best) else None
        at = int(np.argmax(self._bounds(belief, best)))
        judges = best is not None and self._can_say_what_is_left(belief, evidence)
        if best and judges and self._habits_known and len(evidence.successes) >= SETTLED:
            gains = belief.gains(best, belief.runs)
            # What the search would end for is not worth a trial while another one is.
            if gains[at] < self._space.budget.expected_gain <= gains.max():
                at, rule = int(np.argmax(gains)), "greatest expected gain"
        expected = belief.interval(at) | {"fits": float(belief.runs[at])}
        if best and judges:
            gain = belief.left_to_gain(best, 1 + pending, calibrated, rng)
            expected |= {"gain": gain.next, "left": gain.left}
        told = counted(len(evidence.successes), "success") if evidence.told else "no trial yet"
        index = int(self._shortlist.indices[places[at]])
        return Suggestion(index, f"{rule}, cost model after {told}", expected)

    def _bounds(self, belief: Belief, best: Trial | None) -> Array:
        """What each candidate is valued at: an upper confidence bound, if it runs."""
        bounds = belief.mean + KAPPA * belief.deviation + belief.untried + np.log(belief.runs)
        if best and _others(belief):
            # Variants of what was measured are no news, unless they are likely to gain.
            known = np.isfinite(belief.at_most)
            bounds[known & (belief.gains(best) < self._space.budget.expected_gain)] = -np.inf
        return bounds

    def _can_say_what_is_left(self, belief: Belief, evidence: Evidence) -> bool:
        """Whether the model has foreseen enough of the trials to say what is left to gain."""
        successes, run = evidence.successes, evidence.run
        enough = self._shortlist.variants.enough(successes) or not _others(belief)
        if len(successes) < GAIN_TRIALS or not enough or not foresees(run):
            return False
        return not surprised(run, self._space.objective.maximize)

    @property
    def _habits_known(self) -> bool:
        """Whether a record says what the framework keeps, and so what is likely to fit at all."""
        return self._space.program.framework in FRAMEWORKS

    def _calibrated(self, told: Sequence[Trial]) -> CostModel:
        """The model, calibrated with the best and the latest trials."""
        # Of many trials the latest few change little: every twentieth part more is enough.
        step = max(1, len(told) // 20)
        told = sorted(told, key=lambda t: (t.ended_t or 0.0, t.number))[: len(told) // step * step]
        if len(told) > REMEMBERED:
            ranked = sorted(told, key=lambda t: -self._first.measured(t) if positive(t) else np.inf)
            told = [*ranked[: REMEMBERED // 2], *told[-REMEMBERED // 2 :]]
        key = tuple(sorted({t.number for t in told}))
        if key not in self._calibrations:
            by_number = {t.number: t for t in told}
            self._calibrations = {key: self._pricing.calibrated(by_number.values())}
        return self._calibrations[key]


def _others(belief: Belief) -> bool:
    """Whether degrees that no trial had are worth one."""
    return bool((np.isinf(belief.at_most) & (belief.runs > LIKELY)).any())
