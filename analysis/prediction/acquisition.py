"""The value of a trial: which candidate comes next, and what further trials would gain.

The search and the report rank candidates by :func:`acquisition`; :func:`expected_gain` is the
search's stop rule.
"""

from __future__ import annotations

import numpy as np

from analysis.cost.model import LIKELY, CostModel
from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.posterior import Posterior
from analysis.prediction.residual import ResidualProcess
from analysis.prediction.trust import foresees
from analysis.run.trial import Trial
from trainer.plan.jobs import Array, Mask

KAPPA = 0.25  # standard deviations of the upper confidence bound, before FIRST_GAINS
FIRST_GAINS = 2  # successes from which candidates are valued by their expected improvement
FAILURE_PRICE = 0.01  # cost of a failed trial, as a share of the best objective
FAILURES_IN_A_ROW = 2  # after so many, only candidates that run with SURE, until one has run
SURE = 0.9
SHARED = 10.0  # weight of an unpriced value's gain: what it teaches holds for all degrees
UNTRIED_LOG_SD = 0.2  # doubt about each value of a priced switch that no success had
TIE = 1e-6  # weight of the bound: the gains of candidates that cannot win differ by rounding only
UNLIKELY = 0.05  # probability to run below which a candidate is not shown
GAIN_TRIALS = 5  # successes before a gain can be stated
DEGREES = 8  # successes, variants counted once, before a gain is stated if new degrees remain
DRAWS = 256
NUM_CONSIDERED = 256  # most promising candidates, over which gains are drawn
ROUNDING = 1e-8  # added variance: equal candidates would make the covariance singular


def acquisition(posterior: Posterior, best: Trial | None) -> Array:
    """Value of trying each candidate, more is better; shape (m,); -inf for one that has to wait.

    Before FIRST_GAINS successes an upper confidence bound: mean + KAPPA deviation + the deviation
    of untried values of unpriced parameters + log P(counts), where a candidate counts if it runs at
    speed and satisfies the bounds on measured values. From then on the gain, which is expected
    improvement times P(counts), less P(fails) times FAILURE_PRICE, or times the largest gain if
    that is less and the candidate likely runs: one that cannot win is as useless as one that fails.
    The bound breaks ties. If no gain is what a trial has to bring, UNTRIED_LOG_SD widens the
    deviation for each value of a switch that no success had (a pipeline, unsharded states).

    Others wait while some candidates meet these preferences, applied in turn: they run with SURE,
    if the latest FAILURES_IN_A_ROW trials failed; they can win, as their 95 % interval reaches the
    best trial and they likely run or are worth the risk; they are variants with untried values,
    unless new degrees gain SHARED times as much.

    Expected improvement times the probability of feasibility: Gardner et al. 2014; Gelbart et al.
    2014. GP-UCB: Srinivas et al. 2010. Discarding candidates whose upper bound is below a known
    value: de Freitas et al. 2012.

    ``best`` is None before the first success, and for several objectives.
    """
    runs, observations = posterior.feasibility, posterior.observations
    counts = posterior.at_speed
    value = posterior.mean + KAPPA * posterior.deviation + posterior.main_effects + np.log(counts)
    preferred = []
    latest = observations.completed[-FAILURES_IN_A_ROW:]
    if len(latest) == FAILURES_IN_A_ROW and all(trial.failed for trial in latest):
        preferred.append(runs >= SURE)
    if best is not None:
        gain, _ = improvement(posterior, best)
        gains, measured = gain * counts, posterior.goal.measured(best)
        least = posterior.pricing.space.budget.expected_gain
        reaches = posterior.upper >= measured
        if gains.max() < least:  # little to gain, except by switches never tried
            gain, _ = improvement(posterior, best, _doubtful_deviation(posterior))
            reaches |= (gains := gain * counts) >= least
        likely = posterior.eligibility >= LIKELY
        reaches &= likely | (gains > FAILURE_PRICE * (1 - runs))
        if len(observations.successes) >= FIRST_GAINS:
            price = np.where(likely, min(FAILURE_PRICE, gains.max()), FAILURE_PRICE)
            value = gains - price * (1 - runs) + TIE * (value - measured)
        if (first := reaches & _first_variants(posterior, best, gains, least)).any():
            preferred.append(first)
        elif posterior.has_new_degrees:  # they teach more than a variant that gains little
            preferred.append(~posterior.is_variant | (gain >= least))
        preferred.append(reaches)
    kept = np.ones(len(runs), dtype=bool)
    for mask in preferred:
        kept = kept & mask if (kept & mask).any() else kept
    return np.where(kept, value, -np.inf)


def _first_variants(posterior: Posterior, best: Trial, gains: Array, least: float) -> Mask:
    """Mask of variants with untried values, to run before new degrees unless those gain far more.

    At measured degrees only these values differ; at new degrees the model's error would be blamed
    on them. No variant comes first while other trials run (a batch would hold variants of one
    configuration), or if the best trial was slower than its interval and may have been disturbed.

    ``gains`` include the probability to count; a variant has to gain at least ``least``.
    """
    run, objective = posterior.observations.run, best.objective or 0.0
    edge = best.expected.get("low" if run.maximize else "high", objective)
    slow = objective < edge if run.maximize else objective > edge
    going = [t.running or not t.attempts for t in run.trials.values() if not t.ended]
    if slow or any(going):  # a trial that waits for a retry does not count as going
        return np.zeros(len(gains), dtype=bool)
    elsewhere = gains[~posterior.is_variant].max(initial=0.0)
    first = posterior.is_variant & posterior.has_untried_value
    return np.asarray(first & (gains >= max(least, elsewhere / SHARED)))


def states_gain(posterior: Posterior) -> bool:
    """Whether the model has predicted enough of the trials well enough to state a gain."""
    observations = posterior.observations
    if posterior.all_ruled_out:
        return len(observations.successes) > 0  # no candidate is left that could gain much
    if posterior.has_new_degrees and posterior.num_tried_degrees < DEGREES:
        return False
    return len(observations.successes) >= GAIN_TRIALS and foresees(observations.run)


def improvement(
    posterior: Posterior, best: Trial, deviation: Array | None = None
) -> tuple[Array, Array]:
    """Expected improvement of each candidate, if it runs, and its probability to beat the best.

    E[max(exp(goal - best) - 1, 0)] of a normal goal: a share of the best objective (Jones et al.
    1998, for a log-normal objective). The ``deviation`` of the goal defaults to the posterior's.
    """
    from scipy.special import ndtr  # slow to import

    ahead = posterior.mean - posterior.goal.measured(best)
    deviation = posterior.deviation if deviation is None else deviation
    better = ndtr(ahead / deviation)
    grown = np.exp(ahead + deviation**2 / 2) * ndtr(ahead / deviation + deviation)
    return np.maximum(grown - better, 0.0), np.asarray(better)


def expected_gain(
    posterior: Posterior, best: Trial, batch: int, model: CostModel, rng: np.random.Generator
) -> dict[str, float] | None:
    """Expected improvements, as shares of the best objective so far: ``gain`` of the next batch,
    and ``left`` of all candidates together, which a search that stops now forgoes.

    None unless :func:`states_gain`. ``model`` is the calibrated one (the posterior's has drawn
    constants); ``batch`` trials run at once.
    """
    if not states_gain(posterior):
        return None
    mean = posterior.mean_by(model)
    promise = mean + 2 * _doubtful_deviation(posterior) + np.log(posterior.at_speed)
    at = np.argsort(-promise, kind="stable")[:NUM_CONSIDERED]
    ahead = mean[at] - posterior.goal.measured(best)
    untried = UNTRIED_LOG_SD * posterior.untried[at]
    covariance = posterior.covariance(at) + untried @ untried.T
    return drawn_gain(ahead, covariance, posterior.at_speed[at], batch, rng)


def _doubtful_deviation(posterior: Posterior) -> Array:
    """Deviation of the goal, wider by UNTRIED_LOG_SD per switch value that no success had."""
    untried = UNTRIED_LOG_SD * np.sqrt(posterior.untried.sum(axis=1))
    return np.asarray(np.hypot(posterior.deviation, untried))


def drawn_gain(
    ahead: Array, covariance: Array, runs: Array, batch: int, rng: np.random.Generator
) -> dict[str, float]:
    """``gain`` and ``left`` of :func:`expected_gain`, averaged over draws of the candidates' goals.

    Args:
        ahead: mean of each candidate's goal less that of the best trial; shape (m,).
        covariance: of the goals; shape (m, m).
        runs: probability to run, and to satisfy the bounds.
        batch: trials that run at once.
    """
    root = np.linalg.cholesky(covariance + ROUNDING * np.eye(len(ahead)))
    drawn = ahead + rng.standard_normal((DRAWS, len(ahead))) @ root.T
    over = np.where(rng.random(drawn.shape) < runs, np.expm1(np.maximum(drawn, 0.0)), 0.0)
    chosen = np.argsort(-over.mean(axis=0), kind="stable")[: min(batch, len(ahead))]
    return {
        "gain": float(over[:, chosen].max(axis=1).mean()),
        "left": float(over.max(axis=1).mean()),
    }


def remaining_deviation(
    residual: ResidualProcess, features: Array, others: Array, count: int
) -> Array:
    """Deviation of the goal of configurations once all pending trials have ended: exploration.

    Args:
        residual: of the calibrated model.
        features: of configurations: the first ``count`` are evaluated, the others are pending.
        others: their goals by models with drawn constants; shape (models, configurations).
    """
    apart = (others - others.mean(axis=0)) / np.sqrt(len(others))
    variance = residual.at(features)[1] ** 2 + np.square(apart).sum(axis=0)
    if count < len(features):
        across = residual.covariance(features, features[count:]) + apart.T @ apart[:, count:]
        among = across[count:] + NOISE_LOG_SD**2 * np.eye(len(features) - count)
        variance -= np.einsum("ij,ji->i", across, np.linalg.solve(among, across.T))
    return np.asarray(np.sqrt(np.maximum(variance[:count], 0.0)))
