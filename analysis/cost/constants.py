"""Constants of the cost model: few, positive, with a meaning, and with a prior each.

A constant's prior is log-normal: its default is the median, ``spread`` the standard deviation of
its logarithm. Defaults are round numbers: from the literature, from physics, or near what several
published tables agree on. No benchmark predicts rows that its priors were fitted to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# Factor by which the deviations of constants widen when they are taken over to another model. A
# slightly wrong formula errs differently for each model; more data on others does not reveal how.
TRANSFER = 3.0


def constant(median: float, spread: float) -> Any:
    """A field of a :class:`Constants` record: the prior's median, whose unit is in its name.

    ``spread``: standard deviation of the logarithm; 0 fixes it.
    """
    return field(default=median, metadata={"spread": spread})


@dataclass(frozen=True)
class Constants:
    """Base of records whose fields are all made by :func:`constant`."""

    @classmethod
    def spreads(cls) -> Array:
        return np.array([f.metadata["spread"] for f in fields(cls)])

    @classmethod
    def covariance(cls, learnt: Array | None = None) -> Array:
        """The learnt covariance of the logarithms, or else the prior's, from the spreads."""
        return np.diag(cls.spreads() ** 2) if learnt is None else learnt

    @classmethod
    def transferred(cls, learnt: Array | None) -> Array | None:
        """A prior from other models' posterior, widened by ``TRANSFER`` up to the first prior."""
        if learnt is None:
            return None
        inverse = np.linalg.inv
        return np.asarray(inverse(inverse(cls.covariance()) + inverse(TRANSFER**2 * learnt)))

    def logs(self) -> Array:
        return np.log([getattr(self, name) for name in names(type(self))])

    @classmethod
    def from_logs(cls, logs: Array) -> Self:
        """One record from logarithms of shape (k,), or c of them at once from (c, k).

        The fields of the latter are of shape (c, 1), so that what is computed with them and with
        columns of n jobs has the shape (c, n): derivatives cost one evaluation and not one each.
        """
        values = np.exp(logs)
        columns: list[Any] = (
            [float(v) for v in values] if logs.ndim == 1 else [*values.T[:, :, None]]
        )
        return cls(**dict(zip(names(cls), columns, strict=True)))

    def share(self, name: str, stated: float | None) -> Any:
        """A share of a rate: as a cluster states it, corrected by trials, or else the constant."""
        own = getattr(self, name)
        if stated is None:
            return own
        return np.asarray(np.minimum(1.0, stated * own / getattr(type(self), name)))

    def misjudged(self, error: float, rng: np.random.Generator) -> Self:
        """Constants off by ``error`` times their priors' spread."""
        spreads = self.spreads()
        return self.from_logs(self.logs() + error * spreads * rng.standard_normal(len(spreads)))


def names(record: type[Any]) -> tuple[str, ...]:
    """Names of a record's fields; calibration asks for them thousands of times."""
    return tuple(record.__dataclass_fields__)


@dataclass(frozen=True)
class Parts:
    """Base of records of columns of shape (n,) that add up to a total."""

    @property
    def total(self) -> Array:
        return np.asarray(sum(self.as_dict().values()))

    def as_dict(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in names(type(self))}


C = TypeVar("C", bound=Constants)
EDGE = 1.96  # standard deviations: of an interval that has 95 %
FAR = 4.0  # standard deviations of its prior by which a constant moves at most
BOUNDS = (-FAR - 0.01, FAR + 0.01)
_NO_VARIANCE = 1e-12  # variances below it are rounding errors
DIFFERENCE = 1e-4  # step of derivatives, in the prior's standard deviations
STEP = 0.3  # likewise, where a function is linearized
FREEDOM = 4.0  # degrees of freedom of a noise whose scale is integrated out
MAX_STEPS = 15  # of the optimizer, for each loss: further ones gain far less than the noise


def _soft_l1(squared: Array) -> Array:
    return 2 * (np.sqrt(1 + squared) - 1)


def _student(squared: Array) -> Array:
    """Four degrees of freedom."""
    return 5 * np.log1p(squared / 4)


@dataclass(frozen=True)
class Fit(Generic[C]):
    """Constants after evidence."""

    constants: C  # the most probable ones
    covariance: Array  # of their logarithms, in the order of the fields; shape (k, k)
    spread: float  # robust standard deviation of the residuals
    tail: float  # deviation with 95 % of them within 1.96 times it; at least ``spread``
    num_rows: int  # residuals that were fitted to


def fit(
    start: C, residuals: Callable[[C], Array], noise: float, covariance: Array | None = None
) -> Fit[C]:
    """The constants that explain residuals best, given the prior (a maximum a posteriori).

    Minimizes ``sum rho(r_i / noise) + d' P^-1 d`` with d the logarithm of the constants over those
    of ``start``, the prior's medians, and P its covariance. First with the soft-L1 loss, which is
    convex; from there with the logarithm of a Student's t distribution, for which rows that no
    model explains (a disturbed network) hardly count. With a learnt prior only the second is used,
    so that a few disturbed rows cannot override it.

    Args:
        residuals: of n rows, for given constants: logarithms of predicted over measured, of shape
            (n,), or (c, n) for c constants at once (see :meth:`Constants.from_logs`).
        noise: standard deviation that a good model would leave.
        covariance: of the prior's logarithms, where it is learnt.
    """
    from scipy.optimize import least_squares  # slow to import, and seldom needed

    center = start.logs()
    free = type(start).spreads() > 0
    wide = start.covariance(covariance)
    # In units of the prior: x is standard normal, and the logarithms are center + root x.
    root = np.zeros((len(center), int(free.sum())))
    root[free] = np.linalg.cholesky(wide[np.ix_(free, free)])

    def whole(x: Array) -> C:
        return type(start).from_logs(center + x @ root.T)

    beside: dict[bytes, Array] = {}  # the latest costs, at a point and one step along each axis

    def cost(x: Array, loss: Callable[[Array], Array]) -> Array:
        points = np.vstack([x, x + DIFFERENCE * np.eye(len(x))])
        r = residuals(whole(points)) / noise
        # The loss by hand: the prior's own terms stay quadratic.
        beside.clear()
        beside[x.tobytes()] = np.concatenate([np.sign(r) * np.sqrt(loss(r * r)), points], axis=-1)
        return np.asarray(beside[x.tobytes()][0])

    def slopes(x: Array, loss: Callable[[Array], Array]) -> Array:
        if x.tobytes() not in beside:
            cost(x, loss)
        found = beside[x.tobytes()]
        return np.asarray((found[1:] - found[0]).T / DIFFERENCE)

    x = np.zeros(root.shape[1])
    losses = (_soft_l1, _student) if covariance is None else (_student,)
    for loss in losses:
        found = least_squares(cost, x, slopes, bounds=BOUNDS, args=(loss,), max_nfev=MAX_STEPS)
        x = found.x
    constants = whole(x)
    left = residuals(constants)
    spread = float(1.4826 * np.median(np.abs(left))) if left.size else noise
    tail = max(spread, float(np.quantile(np.abs(left), 0.95)) / EDGE) if left.size else noise
    posterior = root @ np.linalg.inv(found.jac.T @ found.jac) @ root.T
    return Fit(constants, posterior, spread, tail, int(left.size))


def integrated(
    constants: C, covariance: Array | None, residuals: Callable[[C], Array], noise: float
) -> tuple[float, Array, Array]:
    """Evidence of residuals, linearized in the constants, which are integrated out.

    The scale of the noise is integrated out as well: a multivariate t distribution.

    Args:
        residuals: measured less predicted logarithms; see :func:`fit`.

    Returns:
        The logarithm of the evidence, up to a term that is the same for all constants; posterior
        mean and covariance of the constants' logarithms.
    """
    logs = constants.logs()
    wide = constants.covariance(covariance)
    step = STEP * np.sqrt(np.diag(wide))
    moved = step > 0
    near = residuals(type(constants).from_logs(np.vstack([logs, logs + np.diag(step)[moved]])))
    slopes, off = np.zeros((len(logs), near.shape[1])), near[0]
    slopes[moved] = (near[1:] - off) / step[moved, None]
    across = wide @ slopes
    gain = np.linalg.inv(slopes.T @ across + noise**2 * np.eye(len(off)))
    log = float(np.linalg.slogdet(gain)[1]) / 2
    log -= (FREEDOM + len(off)) / 2 * float(np.log1p(off @ gain @ off / FREEDOM))
    return log, logs - across @ gain @ off, wide - across @ gain @ across.T


def log_odds(first: Array, second: Array, noise: float) -> Array:
    """Log odds of the second residuals against the first, by the fit's Student's t loss."""
    return np.asarray((_student((first / noise) ** 2) - _student((second / noise) ** 2)) / 2)


def log_sds(
    constants: C, covariance: Array, logarithm: Callable[[C], Array]
) -> tuple[Array, Array]:
    """Standard deviations of a logarithm due to uncertain constants, downwards and upwards.

    Along each principal axis of the covariance, the logarithm is evaluated at both ends of the 95 %
    interval, and each end counts for its own side. Derivatives would not do: a constant without
    data may not matter at its median and take most of a step at its edge, while a step cannot save
    more time than the constant takes. For narrow intervals both sides are the first order.
    Constants without variance are left alone. Ends of shares of a rate (``*_share``) are at most 1,
    unless a fit put the share itself above 1 to make up for a missing term.

    Args:
        logarithm: of n rows, for one record of constants or for c at once; see ``from_logs``.
    """
    logs = constants.logs()
    variances, directions = np.linalg.eigh(covariance)
    loose = variances > _NO_VARIANCE
    edges = EDGE * (np.sqrt(variances[loose]) * directions[:, loose]).T
    share = np.array([name.endswith("_share") for name in names(type(constants))])
    most = np.where(share, np.maximum(logs, 0.0), np.inf)
    points = np.minimum(np.vstack([logs, logs + edges, logs - edges]), most)
    beside = logarithm(type(constants).from_logs(points))
    moved = (beside[1:] - beside[0]).reshape(2, len(edges), beside.shape[1])
    sides = np.minimum(moved.min(axis=0), 0.0), np.maximum(moved.max(axis=0), 0.0)
    down, up = (np.sqrt((side**2).sum(axis=0)) / EDGE for side in sides)
    return down, up
