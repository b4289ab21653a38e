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
APART = 2.0  # distance in doublings of values without an order
DISTURBED_SHARE = 0.1  # prior share of disturbed trials, on a shared machine
PRIOR_RUNS = 10.0  # pseudo-observations behind this share
PRIOR_TRIALS = 4.0  # pseudo-observations behind the prior of the residual's scale
EFFECT_LOG_SD = 0.15  # of an unpriced parameter's main effect
INTERACTION_LOG_SD = 0.1  # of its interaction with degrees and with other unpriced parameters
MEAN_SLOWDOWN = 5.0  # mean log slow-down of disturbed trials, in deviations of the residual
UNDISTURBED = float(np.log(1 - DISTURBED_SHARE) - 0.5 * np.log(2 * np.pi))  # log density at 0


class ResidualProcess:
    """Gaussian process of the residual, conditioned on the measured trials.

    Args:
        features: of the measured trials, from :func:`features`; shape (n, k).
        errors: logarithm of measured over predicted, more being better; shape (n,).
        log_sd: of the residual far from every trial.
        noise_log_sd: of an undisturbed measurement.
        unpriced: number of last columns of ``features`` that encode unpriced parameters.
        rng: draws which trials were disturbed, by how probable that is; default the most probable.
        robust: whether a trial may have been disturbed at all.
    """

    def __init__(
        self,
        features: Array,
        errors: Array,
        log_sd: float,
        noise_log_sd: float = NOISE_LOG_SD,
        unpriced: int = 0,
        rng: np.random.Generator | None = None,
        robust: bool = True,
    ) -> None:
        self._log_sd, self._noise_log_sd, self._unpriced = log_sd, noise_log_sd, unpriced
        noise = noise_log_sd / log_sd
        kept = np.arange(len(errors))
        if robust:
            kept = _undisturbed_trials(self._alike(features, features), errors / log_sd, noise, rng)
        self._features = features[kept]
        self._slower = -np.delete(errors, kept)
        self._num_trials = len(errors)
        among = self._alike(self._features, self._features) + noise**2 * np.eye(len(kept))
        self._inverse = np.linalg.inv(among)
        self._weights = self._inverse @ errors[kept]

    def at(self, features: Array) -> tuple[Array, Array]:
        """Mean and standard deviation for configurations, given by features of shape (m, k)."""
        across = self._alike(features, self._features)
        itself = 1 + self._effects(features, features, "ik,ik->i")
        return across @ self._weights, self._deviation(itself, across)

    def effects(self, features: Array) -> Array:
        """Mean of the main effects of unpriced parameters; shape (m,)."""
        return self._effects(features, self._features, "ik,jk->ij") @ self._weights

    def untried(self, features: Array) -> Array:
        """Standard deviation of the main effects of unpriced parameters; shape (m,)."""
        effects = "ik,jk->ij"
        itself = self._effects(features, features, "ik,ik->i")
        return self._deviation(itself, self._effects(features, self._features, effects))

    def _deviation(self, variance: Array, across: Array) -> Array:
        known = np.einsum("ij,jk,ik->i", across, self._inverse, across, optimize=True)
        return np.asarray(self._log_sd * np.sqrt(np.maximum(variance - known, 1e-6)))

    def _alike(self, a: Array, b: Array) -> Array:
        """Prior covariance of configurations, over the residual's; shape (len(a), len(b))."""
        at = a.shape[1] - self._unpriced
        apart = min(1.0, (INTERACTION_LOG_SD / self._log_sd) ** 2)
        own = 1 - apart * (1 - kernel(a[:, at:], b[:, at:]))
        return kernel(a[:, :at], b[:, :at]) * own + self._effects(a, b, "ik,jk->ij")

    def _effects(self, a: Array, b: Array, which: str) -> Array:
        """The part of the unpriced parameters' main effects; ``which`` is einsum's subscripts."""
        at = a.shape[1] - self._unpriced
        alike = np.einsum(which, a[:, at:], b[:, at:])
        return np.asarray((EFFECT_LOG_SD / self._log_sd) ** 2 * alike)

    def edges(self, deviation: Array | float) -> tuple[Array, Array]:
        """Distances from the mean to the lower and the upper end of the 95 % interval.

        Student's t, because the scale is estimated from the trials. The lower end also covers
        disturbed runs, as frequent and as slow as they were in this search. Both are in logarithms,
        of the shape of ``deviation`` (see :meth:`at`).
        """
        from scipy.special import stdtrit  # slow to import

        edge = stdtrit(PRIOR_TRIALS + self._num_trials, 0.975)
        calm = edge * np.hypot(deviation, self._noise_log_sd)
        disturbed = len(self._slower)
        share = (PRIOR_RUNS * DISTURBED_SHARE + disturbed) / (PRIOR_RUNS + self._num_trials)
        mean = (MEAN_SLOWDOWN * self._log_sd + self._slower.sum()) / (1 + disturbed)
        return np.maximum(calm, mean * np.log(share / 0.025)), calm

    def covariance(self, features: Array, others: Array | None = None) -> Array:
        """Between configurations, shape (m, m), or with others, shape (m, len(others))."""
        others = features if others is None else others
        one, other = (self._alike(x, self._features) for x in (features, others))
        posterior = self._alike(features, others) - one @ self._inverse @ other.T
        return np.asarray(self._log_sd**2 * posterior)


def features(of: Jobs, unpriced: Array) -> Array:
    """Features of configurations, in doublings, followed by the ``unpriced`` ones; shape (n, k)."""
    layout, placement, options = of.layout, of.placement, of.options
    degrees = (layout.tp, layout.pp, layout.vpp, layout.dp, layout.mbs, layout.gas)
    shards = (placement.weight_shard, placement.gradient_shard, placement.optimizer_shard)
    bits = (placement.gather_bits, placement.reduce_bits, placement.secondary_bits)
    switches = (options.fp8, options.schedule, options.overlaps_dispatch, options.dispatcher)
    on_host = (options.offload_activations, options.offload_optimizer, options.offload_parameters)
    columns: list[Any] = [
        *map(np.log2, (*degrees, *shards, placement.secondary_shard + 1)),
        APART * options.sequence_parallel,
        APART * options.recompute,
        *(APART * (each > 0) for each in bits),
        *map(np.log2, (layout.cp, layout.ep)),
        np.log2(layout.etp) * (of.model.mixture is not None),  # without experts it is tp
        *(APART * each for each in (*switches, options.graphs, *on_host)),
        *(APART * each for each in of.modules),
        np.log2(of.model.num_layers),  # fewer in probes
    ]
    return np.concatenate([np.stack(columns, axis=1) / LENGTH_SCALE, unpriced], axis=1)


def unpriced_features(space: SearchSpace, raw: Mapping[str, Any]) -> Array:
    """Features of the unpriced parameters of raw configurations by column; shape (n, k).

    Every value is a unit vector, and the product of two is their correlation: by their distance in
    doublings for ordered positive numbers, else 0.
    """
    found: list[Array] = [np.zeros((len(next(iter(raw.values()))), 0))]
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
        if parameter.value_type == "number":  # a continuous value counts as the nearest listed one
            rows = np.argmin(np.abs(own - column), axis=1)
        else:
            rows = np.argmax(own == column, axis=1)
        found.append(vectors[rows])
    return np.concatenate(found, axis=1)


def survival(here: Array, failed: Array, blame: Array, ran: Array) -> Array:
    """Probability of no failure that memory does not explain, by failures and successes nearby.

    Args:
        here: features of the candidates; shape (m, k).
        failed: features of the trials that failed; shape (f, k).
        blame: weight of each failure, 0 if memory explains it; shape (f,).
        ran: features of the trials that ran.
    """
    against, support = kernel(here, failed) @ blame, kernel(here, ran).sum(axis=1)
    # The prior counts as one success at every candidate.
    return np.asarray((support + 1) / (support + against + 1))


def kernel(a: Array, b: Array) -> Array:
    """Correlation between configurations; shape (len(a), len(b))."""
    squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(squared, 0.0)))


def _undisturbed_trials(
    among: Array, errors: Array, noise: float, rng: np.random.Generator | None
) -> Indices:
    """Indices of the trials that were not disturbed.

    Every trial either belongs to the Gaussian process, or was disturbed: slower by a factor whose
    logarithm is exponentially distributed. The most probable assignment is searched by changing one
    trial at a time, once from all slow trials being disturbed, once from none. So a single outlier
    changes nothing, and several that agree do.

    Args:
        among: correlation of the trials.
        errors: of the model for each trial, in deviations of the residual.
        noise: standard deviation of an undisturbed measurement, likewise.
        rng: draws another assignment near the most probable one: each trial changes sides with its
            probability given the sides of the others.
    """
    found = [
        _most_probable_split(among, errors, noise, start)
        for start in (errors > -2, errors > -np.inf)
    ]
    kept = max(found, key=lambda f: f[0])[1]
    if rng is not None and len(errors):
        from scipy.special import expit  # slow to import

        odds = _log_odds_to_change(among + noise**2 * np.eye(len(errors)), errors, kept)
        kept = kept ^ (rng.random(len(errors)) < expit(odds))
    return np.flatnonzero(kept)


def _most_probable_split(
    among: Array, errors: Array, noise: float, kept: Mask
) -> tuple[float, Mask]:
    """An assignment that no single change makes more probable, and its log probability."""
    among = among + noise**2 * np.eye(len(errors))
    for _ in range(2 * len(errors)):
        kept = kept.copy()
        wrong = _log_odds_to_change(among, errors, kept)
        worst = int(np.argmax(wrong))
        if wrong[worst] <= 0:
            break
        kept[worst] = ~kept[worst]
    within, residuals = among[np.ix_(kept, kept)], errors[kept]
    together = -0.5 * (
        residuals @ np.linalg.solve(within, residuals) + np.linalg.slogdet(within)[1]
    )
    return float(together + len(residuals) * UNDISTURBED + _disturbed(errors)[~kept].sum()), kept


def _log_odds_to_change(among: Array, errors: Array, kept: Mask) -> Array:
    """Log odds that each trial is on the other side, given the sides of the others.

    ``among`` is the covariance of the measurements; ``kept`` trials are taken as undisturbed.
    """
    inverse = np.linalg.inv(among[np.ix_(kept, kept)])
    # Prediction of each trial from the others; for kept trials by the leave-one-out formula.
    across = among[:, kept]
    mean = across @ inverse @ errors[kept]
    variance = np.diag(among) - np.einsum("ij,jk,ik->i", across, inverse, across, optimize=True)
    variance[kept] = 1 / np.diag(inverse)
    mean[kept] = errors[kept] - inverse @ errors[kept] * variance[kept]
    normal = UNDISTURBED - 0.5 * ((errors - mean) ** 2 / variance + np.log(variance))
    return np.asarray(np.where(kept, _disturbed(errors) - normal, normal - _disturbed(errors)))


def _disturbed(errors: Array) -> Array:
    """Log density of the errors if their trials were disturbed."""
    slowed = np.log(DISTURBED_SHARE / MEAN_SLOWDOWN) + errors / MEAN_SLOWDOWN
    return np.where(errors < 0, slowed, -np.inf)
