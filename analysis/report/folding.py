"""SHAP values of inactive parameters, credited to the parameters in their conditions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from analysis.report.forests import Sensitivity
from search_spaces import SearchSpace


def parents(space: SearchSpace) -> dict[str, frozenset[str]]:
    """The names in the condition of each conditional parameter."""
    return {name: condition.names for name, condition in space.conditions.items()}


def folded(found: Sensitivity, parents: Mapping[str, Collection[str]]) -> Sensitivity:
    """The sensitivity with no effect of their own for inactive parameters.

    A tree that splits on whether a parameter is active (``vpp`` needs a pipeline) in fact splits on
    the parameters in its condition (``pp``), its ``parents``. They get, in equal parts, its
    contribution where it is inactive, and its mean contribution where it is active; what remains is
    the effect of its values. Every row still adds up to its prediction; intervals keep their
    relative width.
    """
    columns = found.encoded.values.columns
    shap = found.shap.copy()
    for name in (n for n in columns if n in parents):
        heirs = [columns.get_loc(parent) for parent in parents[name] if parent in columns]
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
