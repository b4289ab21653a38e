"""Which parameters matter: forests over the trials, explained by SHAP.

Dash et al. 2023, section IV, Figure 10: a regression from parameters to objective over the
successful trials, and the mean absolute SHAP value of each parameter. The same for failure, since
a regression over successes alone says nothing of what it takes to succeed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
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
NUM_TREES = 300
NUM_REFITS = 20
REFIT_TREES = 30
FEW_PER_PARAMETER = 5
LOW_R2 = 0.5


class NotEnough(Exception):  # noqa: N818 - not an error of anyone's
    """The trials cannot answer the question yet; the message says why, for the reader."""


@dataclass(frozen=True)
class Sensitivity:
    """A forest's account of one target, by SHAP.

    Attributes:
        encoded: the parameters that the forest saw.
        trial: their trial numbers, shape (n,).
        shap: SHAP values, shape (n, parameters), in the target's unit; the probability of
            failing for the classifier. ``base + shap.sum(1) == prediction``.
        base: the forest's mean prediction.
        prediction: of each trial, shape (n,).
        oob_score: out-of-bag R2 of the regression, accuracy of the classifier.
        base_rate: accuracy of the majority-class baseline; None for the regression.
        interval: mean |SHAP| per parameter over refits on bootstrap samples of the trials:
            ``low`` and ``high``, the 5th and 95th percentile.
        seed: of the forests and the bootstrap.
        warnings: what a reader should know before believing the ranking.
    """

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
    from sklearn.ensemble import RandomForestRegressor

    finite = np.isfinite(frame["objective"].astype(float))
    frame = frame[(frame["kind"] == Kind.OK.value) & finite]
    target = frame["objective"].to_numpy(float)
    encoded = _enough(frame, "successful trial")
    if np.ptp(target) == 0:
        raise NotEnough(f"All {len(frame)} successful trials reached the same objective.")
    forest = RandomForestRegressor(NUM_TREES, oob_score=True, random_state=seed)
    x = encoded.values.to_numpy()
    forest.fit(x, target)
    shap, base = _explain(forest, x)
    r2 = float(forest.oob_score_)
    cautions = _few(len(frame), encoded, "successes")
    if r2 < LOW_R2:
        cautions.append(
            f"The forest predicts unseen trials poorly (out-of-bag R² = {r2:.2f}, below {LOW_R2}): "
            "the ranking may not hold."
        )
    refit = RandomForestRegressor(REFIT_TREES)
    return Sensitivity(
        encoded,
        frame["trial"].to_numpy(int),
        shap,
        base,
        forest.predict(x),
        r2,
        None,
        _bootstrap(refit, encoded.values, target, seed),
        seed,
        tuple(cautions),
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
    from sklearn.ensemble import RandomForestClassifier

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
    forest = RandomForestClassifier(NUM_TREES, oob_score=True, random_state=seed)
    x = encoded.values.to_numpy()
    forest.fit(x, failed)
    shap, base = _explain(forest, x)
    accuracy, base_rate = float(forest.oob_score_), 1 - rarer / len(frame)
    cautions = _few(len(frame), encoded, "trials")
    if accuracy <= base_rate:
        cautions.append(
            f"The forest is no better than the majority-class baseline (out-of-bag accuracy "
            f"{accuracy:.0%}, baseline {base_rate:.0%}): the ranking may not hold."
        )
    refit = RandomForestClassifier(REFIT_TREES)
    return Sensitivity(
        encoded,
        frame["trial"].to_numpy(int),
        shap,
        base,
        forest.predict_proba(x)[:, 1],
        accuracy,
        base_rate,
        _bootstrap(refit, encoded.values, failed, seed, stratify=failed),
        seed,
        tuple(cautions),
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


def _bootstrap(
    forest: Any,
    x: pd.DataFrame,
    target: NDArray[Any],
    seed: int,
    stratify: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """5th and 95th percentile of the mean |SHAP| over refits on resampled trials.

    Resampling the trials, not the rows of one forest's SHAP values, shows how far the ranking
    depends on which configurations happened to be tried.
    """
    from sklearn.utils import resample

    rows, means = np.arange(len(x)), []
    for refit in range(NUM_REFITS):
        random_state = (seed * NUM_REFITS + refit) % 2**32
        drawn = resample(rows, random_state=random_state, stratify=stratify)
        forest.set_params(random_state=random_state).fit(x.to_numpy()[drawn], target[drawn])
        means.append(np.abs(_explain(forest, x.to_numpy())[0]).mean(axis=0))
    low, high = np.percentile(means, [5, 95], axis=0)
    return pd.DataFrame({"low": low, "high": high}, index=x.columns)
