"""Residual of the cost model: a Gaussian process over the trials' log errors.

Distances between configurations count doublings of their degrees. An unpriced parameter has a main
effect, the same at every degree, and an interaction with the degrees. On a shared machine a run
occasionally takes several times as long as its repeat; such disturbed trials are detected and left
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.finalists import NOISE_LOG_SD
from analysis.prediction.columns import unpriced_parameters
from search_spaces import SearchSpace
from trainer.plan.jobs import Array, Indices, Jobs, Mask

LENGTH_SCALE = 1.5  # of the correlation, in doublings of a degree
NEGLIGIBLE = 1e-6  # variance of a direction in which values of a parameter do not differ
APART = 2.0  # doublings that values without an order are apart
DISTURBED_SHARE = 0.1  # share of trials on a shared machine
PRIOR_RUNS = 10.0  # that such a share is as sure as, before any trial
PRIOR_TRIALS = 4.0  # that the residual's scale is as sure as, before any trial
EFFECT_LOG_SD = 0.15  # of what a parameter without a price does by itself
INTERACTION_LOG_SD = 0.1  # of what it does at some degrees, or beside others of its kind, alone
MEAN_SLOWDOWN = 5.0  # mean of their log slow-down, in deviations of the residual
UNDISTURBED = float(np.log(1 - DISTURBED_SHARE) - 0.5 * np.log(2 * np.pi))  # log density at 0


class ResidualProcess:
    """Gaussian process of the residual, conditioned on the measured trials.

    Args:
        features: of the measured trials, from :func:`features`; shape (n, k).
        left: logarithm of measured over predicted, more being better; shape (n,).
        log_sd: of the residual far from every trial.
        noise_log_sd: of an undisturbed measurement.
        unpriced: the last columns of ``features`` that are of parameters without a price.
        rng: draws which trials were disturbed, by how probable that is; default the most probable.
        robust: whether a trial may have been disturbed at all.
    """

    def __init__(
        self,
        features: Array,
        left: Array,
        log_sd: float,
        noise_log_sd: float = NOISE_LOG_SD,
        unpriced: int = 0,
        rng: np.random.Generator | None = None,
        robust: bool = True,
    ) -> None:
        self._log_sd, self._noise_log_sd, self._unpriced = log_sd, noise_log_sd, unpriced
        noise = noise_log_sd / log_sd
        kept = np.arange(len(left))
        if robust:
            kept = _undisturbed_trials(self._alike(features, features), left / log_sd, noise, rng)
        self._features = features[kept]
        self._slower = -np.delete(left, kept)
        self._num_trials = len(left)
        among = self._alike(self._features, self._features) + noise**2 * np.eye(len(kept))
        self._inverse = np.linalg.inv(among)
        self._weights = self._inverse @ left[kept]

    def at(self, features: Array) -> tuple[Array, Array]:
        """Mean and standard deviation, of configurations of shape (m, k)."""
        across = self._alike(features, self._features)
        itself = 1 + self._effects(features, features, "ik,ik->i")
        return across @ self._weights, self._open(itself, across)

    def effects(self, features: Array) -> Array:
        """Mean of what parameters without a price do by themselves; shape (m,)."""
        return self._effects(features, self._features, "ik,jk->ij") @ self._weights

    def untried(self, features: Array) -> Array:
        """Standard deviation of what parameters without a price do by themselves; shape (m,)."""
        effects = "ik,jk->ij"
        itself = self._effects(features, features, "ik,ik->i")
        return self._open(itself, self._effects(features, self._features, effects))

    def _open(self, variance: Array, across: Array) -> Array:
        known = np.einsum("ij,jk,ik->i", across, self._inverse, across, optimize=True)
        return np.asarray(self._log_sd * np.sqrt(np.maximum(variance - known, 1e-6)))

    def _alike(self, a: Array, b: Array) -> Array:
        """Covariance between configurations, over that of the residual; shape (len(a), len(b))."""
        at = a.shape[1] - self._unpriced
        apart = min(1.0, (INTERACTION_LOG_SD / self._log_sd) ** 2)
        own = 1 - apart * (1 - kernel(a[:, at:], b[:, at:]))
        return kernel(a[:, :at], b[:, :at]) * own + self._effects(a, b, "ik,jk->ij")

    def _effects(self, a: Array, b: Array, which: str) -> Array:
        """The part of it that is of the unpriced parameters alone, whatever else differs."""
        at = a.shape[1] - self._unpriced
        alike = np.einsum(which, a[:, at:], b[:, at:])
        return np.asarray((EFFECT_LOG_SD / self._log_sd) ** 2 * alike)

    def edges(self, deviation: Array | float) -> tuple[Array, Array]:
        """Distances from the mean to the lower and the upper end of the 95 % interval.

        Student's t, because the scale is estimated from the trials. The lower end also covers
        disturbed runs, as frequent and as slow as they were in this search.

        Args:
            deviation: of configurations, from :meth:`at`.

        Returns:
            In logarithms, each of the shape of ``deviation``.
        """
        from scipy.special import stdtrit  # slow to import

        edge = stdtrit(PRIOR_TRIALS + self._num_trials, 0.975)  # Student's t
        calm = edge * np.hypot(deviation, self._noise_log_sd)
        disturbed = len(self._slower)
        share = (PRIOR_RUNS * DISTURBED_SHARE + disturbed) / (PRIOR_RUNS + self._num_trials)
        mean = (MEAN_SLOWDOWN * self._log_sd + self._slower.sum()) / (1 + disturbed)
        return np.maximum(calm, mean * np.log(share / 0.025)), calm

    def covariance(self, features: Array, others: Array | None = None) -> Array:
        """Between configurations, shape (m, m), or with others, shape (m, number of them)."""
        others = features if others is None else others
        one, other = (self._alike(x, self._features) for x in (features, others))
        open_ = self._alike(features, others) - one @ self._inverse @ other.T
        return np.asarray(self._log_sd**2 * open_)


def features(of: Jobs, unpriced: Array) -> Array:
    """Features by which configurations differ, in doublings; shape (n, k).

    ``unpriced`` are those of unpriced parameters, from :func:`unpriced_features`.
    """
    layout, placement, options = of.layout, of.placement, of.options
    degrees = (layout.tp, layout.pp, layout.vpp, layout.dp, layout.mbs, layout.gas)
    shards = (placement.weight_shard, placement.gradient_shard, placement.optimizer_shard)
    bits = (placement.gather_bits, placement.reduce_bits, placement.secondary_bits)
    switches = (options.fp8, options.schedule, options.overlaps_dispatch, options.dispatcher)
    columns: list[Any] = [
        *map(np.log2, (*degrees, *shards, placement.secondary_shard + 1)),
        APART * options.sequence_parallel,
        APART * options.recompute,
        *(APART * (each > 0) for each in bits),
        *map(np.log2, (layout.cp, layout.ep)),
        np.log2(layout.etp) * (of.model.mixture is not None),  # of others it is tp
        *(APART * each for each in (*switches, options.graphs)),
        np.log2(of.model.num_layers),  # of probes fewer
    ]
    return np.concatenate([np.stack(columns, axis=1) / LENGTH_SCALE, unpriced], axis=1)


def unpriced_features(space: SearchSpace, raw: Mapping[str, Any], count: int) -> Array:
    """The parameters in which the cost model sees no difference; shape (count, k).

    Every value is a vector of length 1, and the product of two says how alike they are: positive
    numbers that have an order by their distance in doublings, any others not at all. ``raw`` has a
    column of values for each.
    """
    found: list[Array] = []
    for name in unpriced_parameters(space):
        parameter = space.parameters[name]
        numbers = [v for v in parameter.values if isinstance(v, int | float) and v > 0]
        ordered = parameter.value_type == "number" and parameter.ordered is not False
        alike = np.eye(len(parameter.values))
        if ordered and len(numbers) == len(parameter.values):
            doublings = np.log2(np.array(numbers, dtype=float))[:, None] / LENGTH_SCALE
            alike = kernel(doublings, doublings)
        variances, directions = np.linalg.eigh(alike)
        known = variances > NEGLIGIBLE
        vectors = directions[:, known] * np.sqrt(variances[known])
        own, column = parameter.array, parameter.column(raw[name])[:, None]
        if parameter.value_type == "number":  # a continuous one is as good as its next neighbour
            rows = np.argmin(np.abs(own - column), axis=1)
        else:
            rows = np.argmax(own == column, axis=1)
        found.append(vectors[rows])
    return np.concatenate(found, axis=1) if found else np.zeros((count, 0))


def survival(here: Array, failed: Array, blame: Array, ran: Array) -> Array:
    """Probability of no failure that memory does not explain, by what failed and ran nearby.

    Args:
        here: features of the candidates; shape (m, k).
        failed: of the trials that failed; shape (f, k).
        blame: of each, how far memory does not explain it.
        ran: features of the trials that ran.
    """
    against, support = kernel(here, failed) @ blame, kernel(here, ran).sum(axis=1)
    # One success, far away, is what every candidate has to begin with.
    return np.asarray((support + 1) / (support + against + 1))


def kernel(a: Array, b: Array) -> Array:
    """Correlation between configurations; shape (len(a), len(b))."""
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(squared, 0.0)))


def _undisturbed_trials(
    among: Array, left: Array, noise: float, rng: np.random.Generator | None = None
) -> Indices:
    """Trials whose measurement says something of their configuration.

    Every trial either belongs to the Gaussian process, or was disturbed: slower by a factor whose
    logarithm is exponentially distributed. The most probable assignment is looked for by changing
    one trial after another, once from all being disturbed that are slow, once from none. So one
    trial far off changes nothing, and several that agree do.

    Args:
        among: correlation of the trials.
        left: what the model leaves of each, in deviations of the residual.
        noise: standard deviation of an undisturbed measurement, likewise.
        rng: draws another assignment near the most probable one: each trial changes sides with the
            probability that it has where the others are.
    """
    found = [
        _most_probable_split(among, left, noise, start) for start in (left > -2, left > -np.inf)
    ]
    kept = max(found, key=lambda f: f[0])[1]
    if rng is not None and len(left):
        from scipy.special import expit  # slow to import

        odds = _log_odds_to_change(among + noise**2 * np.eye(len(left)), left, kept)
        kept = kept ^ (rng.random(len(left)) < expit(odds))
    return np.flatnonzero(kept)


def _most_probable_split(among: Array, left: Array, noise: float, kept: Mask) -> tuple[float, Mask]:
    """An assignment that no single change makes more probable, and its log probability."""
    among = among + noise**2 * np.eye(len(left))
    for _ in range(2 * len(left)):
        kept = kept.copy()
        wrong = _log_odds_to_change(among, left, kept)
        worst = int(np.argmax(wrong))
        if wrong[worst] <= 0:
            break
        kept[worst] = ~kept[worst]
    within, residuals = among[np.ix_(kept, kept)], left[kept]
    together = -0.5 * (
        residuals @ np.linalg.solve(within, residuals) + np.linalg.slogdet(within)[1]
    )
    return float(together + len(residuals) * UNDISTURBED + _disturbed(left)[~kept].sum()), kept


def _log_odds_to_change(among: Array, left: Array, kept: Mask) -> Array:
    """Log odds of every trial to be on the other side, given where the others are.

    ``among`` is the covariance of their measurements; ``kept`` are taken for undisturbed.
    """
    inverse = np.linalg.inv(among[np.ix_(kept, kept)])
    # What the others predict of each trial; of those kept by the rule for leaving one out.
    across = among[:, kept]
    mean = across @ inverse @ left[kept]
    variance = np.diag(among) - np.einsum("ij,jk,ik->i", across, inverse, across, optimize=True)
    variance[kept] = 1 / np.diag(inverse)
    mean[kept] = left[kept] - inverse @ left[kept] * variance[kept]
    normal = UNDISTURBED - 0.5 * ((left - mean) ** 2 / variance + np.log(variance))
    return np.asarray(np.where(kept, _disturbed(left) - normal, normal - _disturbed(left)))


def _disturbed(left: Array) -> Array:
    """Log density of a disturbed trial's residual."""
    slowed = np.log(DISTURBED_SHARE / MEAN_SLOWDOWN) + left / MEAN_SLOWDOWN
    return np.where(left < 0, slowed, -np.inf)
