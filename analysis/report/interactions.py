"""Which parameters' effects depend on which others, and what decides whether a job fits."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.cost.model import LIKELY
from analysis.report.encoding import encode
from analysis.report.forests import Sensitivity
from analysis.report.outlook import Outlook

PARAMETERS = 8  # that matter most, among which interactions are sought
NAMED = 3  # interactions in words
DRAWN = 1_500  # configurations by which memory's border is drawn
COUNTED = 0.02  # share of an effect below which a parameter is not said to decide anything


def interactions(found: Sensitivity) -> list[tuple[str, str, float]]:
    """Pairs of parameters by how far the effect of one depends on the other, strongest first.

    Within equal values of ``a`` the SHAP values of ``a`` differ only by the rest. What of that goes
    with ``b`` is an interaction: the root of the mean square, both ways together, in the target's
    unit. What cells of few rows show by chance is taken off, as for omega squared.
    """
    names = list(found.mean_abs.head(PARAMETERS).index)
    pairs = [
        (a, b, _depends(found, a, b) + _depends(found, b, a)) for a, b in combinations(names, 2)
    ]
    return sorted((p for p in pairs if p[2] > 0), key=lambda p: -p[2])


def _depends(found: Sensitivity, a: str, b: str) -> float:
    values = found.encoded.values
    shap = pd.Series(found.shap[:, values.columns.get_loc(a)])
    own, both = values[a].to_numpy(), [values[a].to_numpy(), values[b].to_numpy()]
    left = shap - shap.groupby(own).transform("mean")
    return _explained(left, both, groups=len(np.unique(own)))


def _explained(target: pd.Series[float], by: list[NDArray[Any]], groups: int) -> float:
    """Root mean square that cells explain of a target whose ``groups`` have no mean left."""
    cells = target.groupby(by)
    count = cells.ngroups
    if count <= groups or len(target) <= count:
        return 0.0
    between = float((cells.transform("mean") ** 2).sum())
    within = float((target**2).sum()) - between
    chance = (count - groups) * within / (len(target) - count)
    return float(np.sqrt(max(0.0, between - chance) / len(target)))


def dependence(found: Sensitivity) -> dict[str, Any]:
    """For the figure of effects: rows of the parameters that matter most, and their SHAP values."""
    columns, chosen = found.encoded.values.columns, found.mean_abs.head(PARAMETERS).index
    record = {}
    for name in chosen:
        values = found.encoded.values[name].to_numpy()
        shown, place = np.unique(values, return_inverse=True)
        record[str(name)] = {
            "values": [found.encoded.words[str(name)].get(float(v), "–") for v in shown],
            "of": place.tolist(),
            "shap": found.shap[:, columns.get_loc(name)].tolist(),
        }
    return record


def memory_border(outlook: Outlook) -> dict[str, Any] | None:
    """Where memory ends: configurations, their probability to fit, and what decides it.

    Returns:
        For the figure: ``parameters`` as of trials, ``fits`` of each row, ``share`` that likely
        fits, ``decisive``: parameters by the share of the variance that their values alone explain.
        None where all configurations fit, or none, or no parameter decides it.
    """
    fits = outlook.fits
    likely = fits >= LIKELY
    if likely.all() or not likely.any():
        return None
    rows = slice(0, DRAWN)  # they are in random order
    encoded = encode(outlook.frame(outlook.indices[rows]))
    target = pd.Series(fits[rows] - fits[rows].mean())
    variance = float((target**2).mean())
    if encoded.values.empty or variance == 0:
        return None
    share = {
        str(name): _explained(target, [encoded.values[name].to_numpy()], 1) ** 2 / variance
        for name in encoded.values
    }
    decisive = sorted(((n, s) for n, s in share.items() if s > COUNTED), key=lambda p: -p[1])
    if not decisive:
        return None
    parameters = {}
    for name in [n for n, _ in decisive] + [n for n in share if share[n] <= COUNTED]:
        shown, place = np.unique(encoded.values[name].to_numpy(), return_inverse=True)
        words = [encoded.words[name].get(float(v), "–") for v in shown]
        parameters[name] = {"values": words, "of": place.tolist()}
    return {
        "parameters": parameters,
        "fits": np.round(fits[rows], 3).tolist(),
        "share": float(likely.mean()),
        "decisive": decisive,
    }
