"""Interactions of parameters, and the parameters that decide whether a job fits."""

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

PARAMETERS = 8  # leading ones, among which interactions are sought
NAMED = 3  # interactions named on the page
DRAWN = 1_500  # configurations from which the border of memory is drawn
COUNTED = 0.02  # share of the variance from which a parameter is decisive


def interactions(found: Sensitivity) -> list[tuple[str, str, float]]:
    """Pairs of parameters with the strength of their interaction, strongest first.

    At equal values of ``a`` its SHAP values differ only because of other parameters. The root mean
    square of the part explained by ``b``, summed both ways, is the strength, in the target's unit.
    Variance that cells of few rows explain by chance is subtracted, as in omega squared.
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
    """Root mean square explained by cells, for a target with zero mean in each of ``groups``."""
    cells = target.groupby(by)
    count = cells.ngroups
    if count <= groups or len(target) <= count:
        return 0.0
    between = float((cells.transform("mean") ** 2).sum())
    within = float((target**2).sum()) - between
    chance = (count - groups) * within / (len(target) - count)
    return float(np.sqrt(max(0.0, between - chance) / len(target)))


def dependence(found: Sensitivity) -> dict[str, Any]:
    """Values and SHAP values of the leading parameters, by row, for the figure."""
    columns, chosen = found.encoded.values.columns, found.mean_abs.head(PARAMETERS).index
    return {
        str(name): found.encoded.levels(str(name))
        | {"shap": found.shap[:, columns.get_loc(name)].tolist()}
        for name in chosen
    }


def memory_border(outlook: Outlook) -> dict[str, Any] | None:
    """The border of memory: which configurations fit, and the parameters that decide it.

    ``parameters`` as of trials; ``fits``: probability of each row; ``share`` that likely fits;
    ``decisive``: parameters by the share of the variance that each explains alone. None if all
    configurations fit, none does, or no parameter is decisive.
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
    names = [n for n, _ in decisive] + [n for n in share if share[n] <= COUNTED]
    return {
        "parameters": {name: encoded.levels(name) for name in names},
        "fits": np.round(fits[rows], 3).tolist(),
        "share": float(likely.mean()),
        "decisive": decisive,
    }
