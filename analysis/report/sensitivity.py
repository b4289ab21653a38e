"""Which parameters matter: forests over the trials, explained by SHAP.

Dash et al. 2023, section IV, Figure 10: a regression from parameters to objective over the
successful trials, and the mean absolute SHAP value of each parameter. The same for failure, since
a regression over successes alone says nothing of what it takes to succeed.

Exact SHAP values take trees x leaves x trials; leaves grow with the trials, and so would the cost
with their square. Every trial teaches the forest, but its trees have at most MAX_LEAVES leaves, and
EXPLAINED of the trials are explained, drawn evenly over what the forest predicts.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.report.encoding import Encoded, encode
from analysis.run.trial import TOLD
from analysis.units import counted
from slurm import Kind

MIN_TRIALS = 8  # below, out-of-bag scores and SHAP values are noise
MIN_PER_CLASS = 3
NUM_TREES = 100
MAX_LEAVES = 256  # of a tree; more of them explain noise
EXPLAINED = 400  # trials whose SHAP values are computed
NUM_REFITS = 20
REFIT_TREES, REFIT_LEAVES, REFIT_EXPLAINED = 10, 64, 100  # only their spread counts
FEW_PER_PARAMETER = 5
LOW_R2 = 0.5


class NotEnough(Exception):  # noqa: N818 - not an error of anyone's
    """The trials cannot answer the question yet; the message says why, for the reader."""


@dataclass(frozen=True)
class Sensitivity:
    """A forest's account of one target, by SHAP.

    Attributes:
        total: trials that the forest has learned from.
        encoded: the parameters of the n trials that are explained: all, or a sample of EXPLAINED
            that is spread evenly over the predictions.
        trial: their numbers, shape (n,).
        shap: SHAP values, shape (n, parameters), in the target's unit; the probability of
            failing for the classifier. ``base + shap.sum(1) == prediction``.
        base: the forest's mean prediction.
        prediction: of each trial, shape (n,).
        oob_score: out-of-bag R2 of the regression, accuracy of the classifier.
        base_rate: accuracy of the majority-class baseline; None for the regression.
        interval: mean |SHAP| per parameter, times the 5th (``low``) and the 95th percentile
            (``high``) of what it is relative to the median, over refits on resampled trials.
        seed: of the forests, the sample and the bootstrap.
        warnings: what a reader should know before believing the ranking.
    """

    total: int
    encoded: Encoded
    trial: NDArray[np.int_]
    shap: NDArray[np.float64]
    base: float
    prediction: NDArray[np.float64]
    oob_score: float
    base_rate: float | None
    interval: pd.DataFrame
    seed: int
    warnings: tuple[str, ...]

    @property
    def n(self) -> int:
        """Trials that are explained."""
        return len(self.shap)

    @property
    def mean_abs(self) -> pd.Series[float]:
        """Mean |SHAP| per parameter, the largest first."""
        means = pd.Series(np.abs(self.shap).mean(axis=0), index=self.encoded.values.columns)
        return means.sort_values(ascending=False, kind="stable")


def objective_sensitivity(frame: pd.DataFrame, seed: int = 0) -> Sensitivity:
    """What drives the objective, among the trials that succeeded.

    Args:
        frame: ``analysis.load(run)``.
        seed: of the forests and the bootstrap.

    Raises:
        NotEnough: fewer than MIN_TRIALS successes, no parameter or objective that varied.
    """
    finite = np.isfinite(frame["objective"].astype(float))
    frame = frame[(frame["kind"] == Kind.OK.value) & finite]
    target = frame["objective"].to_numpy(float)
    encoded = _enough(frame, "successful trial")
    if np.ptp(target) == 0:
        raise NotEnough(f"All {len(frame)} successful trials reached the same objective.")
    from sklearn.ensemble import RandomForestRegressor  # slow to import

    forest = RandomForestRegressor(NUM_TREES, max_leaf_nodes=MAX_LEAVES, oob_score=True)
    fitted = _fitted(forest, encoded, target, seed)
    cautions = _few(len(frame), encoded, "successes")
    if fitted.oob_score < LOW_R2:
        cautions.append(
            "The forest predicts unseen trials poorly (out-of-bag R² = "
            f"{fitted.oob_score:.2f}, below {LOW_R2}): the ranking may not hold."
        )
    return replace(
        fitted, trial=frame["trial"].to_numpy(int)[fitted.trial], warnings=tuple(cautions)
    )


def failure_sensitivity(frame: pd.DataFrame, seed: int = 0) -> Sensitivity:
    """What drives failure, among the trials whose end says something about the configuration.

    Lost nodes, failed launches, preempted and cancelled trials are left out.

    Args:
        frame: ``analysis.load(run)``.
        seed: of the forests and the bootstrap.

    Raises:
        NotEnough: fewer than MIN_TRIALS trials, fewer than MIN_PER_CLASS successes or failures,
            or no parameter that varied.
    """
    frame = frame[frame["kind"].isin(TOLD)]
    failed = (frame["kind"] != Kind.OK.value).to_numpy(bool)
    if len(frame) and not failed.any():
        raise NotEnough("No trial failed because of its configuration.")
    encoded = _enough(frame, "trial")
    rarer = min(int(failed.sum()), int((~failed).sum()))
    if rarer < MIN_PER_CLASS:
        raise NotEnough(
            f"{failed.sum()} of {len(frame)} trials failed because of their configuration; "
            f"telling failures from successes needs at least {MIN_PER_CLASS} of each."
        )
    from sklearn.ensemble import RandomForestClassifier  # slow to import

    forest = RandomForestClassifier(NUM_TREES, max_leaf_nodes=MAX_LEAVES, oob_score=True)
    fitted = _fitted(forest, encoded, failed, seed)
    base_rate = 1 - rarer / len(frame)
    cautions = _few(len(frame), encoded, "trials")
    if fitted.oob_score <= base_rate:
        cautions.append(
            f"The forest is no better than the majority-class baseline (out-of-bag accuracy "
            f"{fitted.oob_score:.0%}, baseline {base_rate:.0%}): the ranking may not hold."
        )
    return replace(
        fitted,
        trial=frame["trial"].to_numpy(int)[fitted.trial],
        base_rate=base_rate,
        warnings=tuple(cautions),
    )


def _enough(frame: pd.DataFrame, what: str) -> Encoded:
    if len(frame) < MIN_TRIALS:
        raise NotEnough(
            f"{counted(len(frame), what) if len(frame) else f'No {what}s'} so far; "
            f"a sensitivity analysis needs at least {MIN_TRIALS}."
        )
    encoded = encode(frame)
    if encoded.values.empty:
        raise NotEnough(f"No parameter varied among the {len(frame)} {what}s.")
    return encoded


def _few(n: int, encoded: Encoded, what: str) -> list[str]:
    parameters = encoded.values.shape[1]
    if n >= FEW_PER_PARAMETER * parameters:
        return []
    return [
        f"Only {n} {what} for {counted(parameters, 'parameter')} (rule of thumb: at least "
        f"{FEW_PER_PARAMETER * parameters}): take the order as a hint."
    ]


def _fitted(forest: Any, encoded: Encoded, target: NDArray[Any], seed: int) -> Sensitivity:
    """The account of a forest of this kind; its ``trial`` has rows in place of numbers."""
    x = encoded.values.to_numpy()
    forest.set_params(random_state=seed % 2**32).fit(x, target)
    classes = target.dtype == bool
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
        base_rate=None,
        interval=_interval(forest, encoded.values, target, np.abs(shap).mean(axis=0), seed),
        seed=seed,
        warnings=(),
    )


def _spread_rows(target: NDArray[Any], count: int, seed: int) -> NDArray[np.int_]:
    """At most ``count`` rows, one at random from each of as many equal slices by ``target``."""
    if len(target) <= count:
        return np.arange(len(target))
    rng = np.random.default_rng(seed)
    order = np.lexsort((rng.random(len(target)), target))  # equals in random order
    cuts = np.linspace(0, len(target), count + 1)
    return np.sort(order[(cuts[:-1] + rng.random(count) * np.diff(cuts)).astype(int)])


def _explain(forest: Any, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """SHAP values (n, parameters) and base value; of the class True for a classifier."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports: tqdm's widgets, colour maps
        import shap  # seconds: it brings numba

    explainer = shap.TreeExplainer(forest)
    values, base = np.asarray(explainer.shap_values(x)), np.atleast_1d(explainer.expected_value)
    if values.ndim == 3:
        values = values[:, :, 1]
    return values, float(base[-1])


def _interval(
    forest: Any, x: pd.DataFrame, target: NDArray[Any], means: NDArray[np.float64], seed: int
) -> pd.DataFrame:
    """What mean |SHAP| may be: its own value, times its spread over refits on resampled trials.

    Resampling the trials, not the rows of one forest's SHAP values, shows how far the ranking
    depends on which configurations happened to be tried. The refits are smaller forests; what they
    find is therefore only compared among themselves.
    """
    from sklearn.base import clone
    from sklearn.utils import resample

    small = clone(forest).set_params(
        n_estimators=REFIT_TREES, max_leaf_nodes=REFIT_LEAVES, oob_score=False
    )
    stratify = target if target.dtype == bool else None
    values, rows, found = x.to_numpy(), np.arange(len(x)), []
    explained = values[_spread_rows(target, REFIT_EXPLAINED, seed)]
    for refit in range(NUM_REFITS):
        random_state = (seed * NUM_REFITS + refit) % 2**32
        drawn = resample(rows, random_state=random_state, stratify=stratify)
        small.set_params(random_state=random_state).fit(values[drawn], target[drawn])
        found.append(np.abs(_explain(small, explained)[0]).mean(axis=0))
    middle = np.median(found, axis=0)
    relative = np.divide(found, middle, out=np.ones_like(found), where=middle > 0)
    low, high = np.percentile(relative, [5, 95], axis=0) * means
    return pd.DataFrame({"low": low, "high": high}, index=x.columns)
