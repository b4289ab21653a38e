"""The value of a trial: which candidate comes next, and what further trials would gain.

The search and the report rank candidates by :func:`acquisition`; :func:`expected_gain` is the
search's stop rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost.model import CostModel
from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.posterior import Posterior
from analysis.prediction.residual import ResidualProcess
from analysis.prediction.trust import foresees
from analysis.run.trial import Trial
from search_spaces import FRAMEWORKS
from trainer.plan.jobs import Array

KAPPA = 0.25  # standard deviations above the mean at which a candidate is valued
UNLIKELY = 0.05  # probability to run below which a candidate counts as one that cannot win
GAIN_TRIALS = 5  # successes before a gain can be stated
SETTLED = 8  # successes before candidates are valued by their gain
DEGREES = 8  # different configurations among the successes, where variants count as one
DRAWS = 256
NUM_CONSIDERED = 256  # candidates that may gain something worth counting


def acquisition(posterior: Posterior, best: Trial | None) -> Array:
    """Value of trying each candidate, more is better; shape (m,); -inf for a useless trial.

    Candidates that can win are those whose 95 % interval reaches the best trial and which run with
    at least UNLIKELY. Their value is the expected improvement times P(runs). Before SETTLED
    successes gains are too uncertain, and so are the probabilities to fit of a framework without a
    record: the value is then an upper confidence bound, mean + KAPPA deviation + the deviation of
    untried values of unpriced parameters, plus log P(runs). If no candidate can win, all that are
    not useless are valued by expected improvement times P(runs), or by the bound where that is 0.

    Expected improvement times the probability of feasibility: Gardner et al. 2014; Gelbart et al.
    2014. GP-UCB: Srinivas et al. 2010. Discarding candidates whose upper bound is below a known
    value: de Freitas et al. 2012.

    Args:
        posterior: of the candidates.
        best: the best trial; None before the first success, or for several objectives.
    """
    runs, space = posterior.feasibility, posterior.pricing.space
    bound = posterior.mean + KAPPA * posterior.deviation + posterior.main_effects + np.log(runs)
    if best is None:
        return np.asarray(bound)
    gain, _ = improvement(posterior, best)
    useful = np.ones(len(runs), dtype=bool)
    if posterior.has_new_degrees:  # a variant that gains little is useless beside them
        useful = ~posterior.is_variant | (gain >= space.budget.expected_gain)
    wins = useful & (posterior.upper >= posterior.goal.measured(best)) & (runs >= UNLIKELY)
    settled = len(posterior.observations.successes) >= SETTLED and states_gain(posterior)
    by_gain = settled and space.program.framework in FRAMEWORKS
    if wins.any():
        return np.where(wins, gain * runs if by_gain else bound, -np.inf)
    value = np.where(useful, gain * runs, 0.0)
    return value if value.any() else np.where(useful, bound, -np.inf)


def states_gain(posterior: Posterior) -> bool:
    """Whether the model has predicted enough of the trials well enough to state a gain."""
    observations = posterior.observations
    if posterior.has_new_degrees and posterior.num_tried_degrees < DEGREES:
        return False
    return len(observations.successes) >= GAIN_TRIALS and foresees(observations.run)


def improvement(posterior: Posterior, best: Trial) -> tuple[Array, Array]:
    """Expected improvement of each candidate, if it runs, and the probability to be better.

    E[max(exp(goal - best) - 1, 0)] of a normal goal: a share of the best objective (Jones et al.
    1998, for a log-normal objective).

    Args:
        posterior: of the candidates.
        best: the best trial.
    """
    from scipy.special import ndtr  # slow to import

    ahead, deviation = posterior.mean - posterior.goal.measured(best), posterior.deviation
    better = ndtr(ahead / deviation)
    grown = np.exp(ahead + deviation**2 / 2) * ndtr(ahead / deviation + deviation)
    return np.maximum(grown - better, 0.0), np.asarray(better)


@dataclass(frozen=True)
class ExpectedGain:
    """Expected improvements, as shares of the best objective so far.

    Attributes:
        next: of the next batch.
        left: of all candidates together: what a search that stops now forgoes.
    """

    next: float
    left: float


def expected_gain(
    posterior: Posterior, best: Trial, batch: int, model: CostModel, rng: np.random.Generator
) -> ExpectedGain | None:
    """Expected improvement of the next batch and of all candidates together.

    None while the model has not predicted enough of the trials well enough to state it.

    Args:
        posterior: of the candidates.
        best: the best trial.
        batch: trials that run at once.
        model: calibrated, in place of the posterior's where that one's constants are drawn.
        rng: of the draws.
    """
    if not states_gain(posterior):
        return None
    mean = posterior.mean_by(model)
    promise = mean + 2 * posterior.deviation + np.log(posterior.feasibility)
    at = np.argsort(-promise, kind="stable")[:NUM_CONSIDERED]
    ahead = mean[at] - posterior.goal.measured(best)
    return drawn_gain(ahead, posterior.covariance(at), posterior.feasibility[at], batch, rng)


def drawn_gain(
    ahead: Array, covariance: Array, runs: Array, batch: int, rng: np.random.Generator
) -> ExpectedGain:
    """Expected gains, as the mean over draws of what all candidates could be.

    Args:
        ahead: mean of each candidate's goal less that of the best trial; shape (m,).
        covariance: of the goals; shape (m, m).
        runs: probability to run.
        batch: trials that run at once.
        rng: of the draws.
    """
    drawn = rng.multivariate_normal(ahead, covariance, DRAWS, method="eigh")
    over = np.where(rng.random(drawn.shape) < runs, np.expm1(np.maximum(drawn, 0.0)), 0.0)
    chosen = np.argsort(-over.mean(axis=0), kind="stable")[: min(batch, len(ahead))]
    return ExpectedGain(float(over[:, chosen].max(axis=1).mean()), float(over.max(axis=1).mean()))


def remaining_deviation(
    residual: ResidualProcess, features: Array, others: Array, count: int
) -> Array:
    """Deviation of the goal of configurations once all pending trials have ended: exploration.

    Args:
        residual: of the calibrated model.
        features: of configurations; the first ``count`` are asked about, the others are pending.
        others: their goals by models with drawn constants; shape (models, configurations).
        count: configurations that are asked about.
    """
    apart = (others - others.mean(axis=0)) / np.sqrt(len(others))
    variance = residual.at(features)[1] ** 2 + np.square(apart).sum(axis=0)
    if count < len(features):
        across = residual.covariance(features, features[count:]) + apart.T @ apart[:, count:]
        among = across[count:] + NOISE_LOG_SD**2 * np.eye(len(features) - count)
        variance -= np.einsum("ij,ji->i", across, np.linalg.solve(among, across.T))
    return np.asarray(np.sqrt(np.maximum(variance[:count], 0.0)))
