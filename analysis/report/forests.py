"""Random forests over configurations, explained by SHAP.

Exact SHAP values take trees x leaves x rows. Leaves grow with rows, so the cost would grow with
their square. Trees therefore have at most MAX_LEAVES leaves, and only EXPLAINED of the rows, spread
evenly over the predictions, are explained. The forest is fitted to all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.report.encoding import Encoded
from search_spaces import SearchSpace

NUM_TREES = 40
MAX_LEAVES = 128  # of a tree; more would fit noise
EXPLAINED = 200  # rows whose SHAP values are computed
NUM_REFITS = 10
REFIT_TREES, REFIT_LEAVES, REFIT_EXPLAINED = 8, 48, 80  # only their spread is used

Refit = tuple[NDArray[np.int_], NDArray[Any]]
"""Rows for a smaller forest, and their targets."""


class NotEnough(Exception):  # noqa: N818 - nobody's error
    """Too little data to answer the question; the message says why."""


@dataclass(frozen=True)
class Sensitivity:
    """SHAP values of a random forest for one target: base + shap.sum(1) == prediction. The n
    explained trials or configurations are all, or EXPLAINED spread evenly over the predictions.
    """

    total: int  # trials or configurations that the forest is fitted to
    encoded: Encoded  # parameters of the n explained ones
    trial: NDArray[np.int_]  # numbers of the explained trials, or rows; shape (n,)
    # shape (n, parameters), in the target's unit; for the classifier the probability of failure
    shap: NDArray[np.float64]
    base: float  # the forest's mean prediction
    prediction: NDArray[np.float64]  # shape (n,)
    oob_score: float  # out-of-bag R2 of the regressor, accuracy of the classifier
    # ``low`` and ``high`` of mean |SHAP| per parameter: its value times the 5th and 95th percentile
    # over refits, relative to their median. Refits are on resampled trials, or on predictions with
    # other draws of a model's constants
    interval: pd.DataFrame
    seed: int  # of the forests, the sample and the refits
    # accuracy of the majority-class baseline; None for the regressor
    base_rate: float | None = None
    warnings: tuple[str, ...] = ()  # caveats about the ranking

    @property
    def n(self) -> int:
        """Explained trials or configurations."""
        return len(self.shap)

    @property
    def mean_abs(self) -> pd.Series[float]:
        """Mean |SHAP| per parameter, largest first."""
        means = pd.Series(np.abs(self.shap).mean(axis=0), index=self.encoded.values.columns)
        return means.sort_values(ascending=False, kind="stable")


def fitted(
    encoded: Encoded, target: NDArray[Any], seed: int, refits: Iterable[Refit]
) -> Sensitivity:
    """Fit a random forest and explain it; ``trial`` of the result has row indices.

    A bool ``target`` makes it a classifier; the spread of ``refits`` is the interval.
    """
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor  # slow to import

    x = encoded.values.to_numpy()
    classes = target.dtype == bool
    kind = RandomForestClassifier if classes else RandomForestRegressor
    forest = kind(
        NUM_TREES, max_leaf_nodes=MAX_LEAVES, oob_score=True, random_state=seed % 2**32
    ).fit(x, target)
    predicted = forest.predict_proba(x)[:, 1] if classes else forest.predict(x)
    rows = _spread_rows(predicted, EXPLAINED, seed)
    shap, base = _explain(forest, x[rows])
    return Sensitivity(
        total=len(x),
        encoded=encoded.rows(rows),
        trial=rows,
        shap=shap,
        base=base,
        prediction=predicted[rows],
        oob_score=float(forest.oob_score_),
        interval=_interval(forest, encoded.values, target, np.abs(shap).mean(axis=0), seed, refits),
        seed=seed,
    )


def _spread_rows(target: NDArray[Any], count: int, seed: int) -> NDArray[np.int_]:
    """At most ``count`` rows: a random one from each of ``count`` equal slices by ``target``."""
    if len(target) <= count:
        return np.arange(len(target))
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(target)), target))  # equals in random order
    cuts = np.linspace(0, len(target), count + 1)
    return np.sort(order[(cuts[:-1] + rng.random(count) * np.diff(cuts)).astype(int)])


def _explain(forest: Any, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """SHAP values (n, parameters) and base value; of the class True for a classifier."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from its imports: tqdm's widgets, colour maps
        import shap  # takes seconds: it imports numba

    explainer = shap.TreeExplainer(forest)
    # Its check of the sums fails by rounding where one figure is 1e16 times another.
    values = np.asarray(explainer.shap_values(x, check_additivity=False))
    if values.ndim == 3:
        values = values[:, :, 1]
    return values, float(np.atleast_1d(explainer.expected_value)[-1])


def _interval(
    forest: Any,
    x: pd.DataFrame,
    target: NDArray[Any],
    means: NDArray[np.float64],
    seed: int,
    refits: Iterable[Refit],
) -> pd.DataFrame:
    """Mean |SHAP| times its relative spread over refits.

    Refits are smaller forests, so their values are compared only among themselves.
    """
    from sklearn.base import clone

    small = clone(forest).set_params(
        n_estimators=REFIT_TREES, max_leaf_nodes=REFIT_LEAVES, oob_score=False
    )
    values, found = x.to_numpy(), []
    explained = values[_spread_rows(target, REFIT_EXPLAINED, seed)]
    for number, (rows, wanted) in enumerate(refits):
        small.set_params(random_state=(seed * NUM_REFITS + number) % 2**32)
        small.fit(values[rows], wanted)
        found.append(np.abs(_explain(small, explained)[0]).mean(axis=0))
    middle = np.median(found, axis=0)
    relative = np.divide(found, middle, out=np.ones_like(found), where=middle > 0)
    low, high = np.percentile(relative, [5, 95], axis=0) * means
    return pd.DataFrame({"low": low, "high": high}, index=x.columns)


def resampled(target: NDArray[Any], seed: int) -> Iterable[Refit]:
    """Bootstrap refits, stratified by class.

    Resampling trials, not one forest's SHAP values, shows how far the ranking depends on which
    configurations happened to be tried.
    """
    from sklearn.utils import resample

    rows, stratify = np.arange(len(target)), target if target.dtype == bool else None
    for refit in range(NUM_REFITS):
        chosen = resample(rows, random_state=(seed * NUM_REFITS + refit) % 2**32, stratify=stratify)
        yield chosen, target[chosen]


def folded(found: Sensitivity, space: SearchSpace) -> Sensitivity:
    """The sensitivity in which being inactive has no effect of its own.

    A tree that splits on whether a parameter is active (``vpp`` needs a pipeline) in fact splits on
    the parameters in its condition (``pp``). They get, in equal parts, its contribution where it is
    inactive, and its mean contribution where it is active; what remains is the effect of its
    values. Every row still adds up to its prediction; intervals keep their relative width.
    """
    columns = found.encoded.values.columns
    shap = found.shap.copy()
    for name in (n for n in columns if n in space.conditions):
        decisive = space.conditions[name].names
        heirs = [columns.get_loc(parent) for parent in decisive if parent in columns]
        off, own = found.encoded.inactive[name].to_numpy(), columns.get_loc(name)
        if not heirs or not off.any():
            continue
        activity = np.where(off, shap[:, own], shap[~off, own].mean() if not off.all() else 0.0)
        for heir in heirs:
            shap[:, heir] += activity / len(heirs)
        shap[:, own] -= activity
    before, after = (np.abs(x).mean(axis=0) for x in (found.shap, shap))
    ratio = np.divide(after, before, out=np.ones_like(after), where=before > 0)
    return replace(found, shap=shap, interval=found.interval.mul(ratio, axis=0))
