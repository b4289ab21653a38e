"""What a conditional parameter's absence is credited with: the parameters that decide it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from analysis.report.forests import Sensitivity
from search_spaces import SearchSpace


def parents(space: SearchSpace) -> dict[str, frozenset[str]]:
    """By conditional parameter, the names that its condition reads."""
    return {name: condition.names for name, condition in space.conditions.items()}


def folded(found: Sensitivity, parents: Mapping[str, Collection[str]]) -> Sensitivity:
    """The same account, in which an inactive parameter has no effect of its own.

    A tree that splits on whether a parameter is active (``vpp`` without a pipeline is not) splits
    on what the condition reads (``pp``). To those parameters goes, in equal parts, all of its
    contribution where it is inactive, and the mean of it where it is active: what is left is the
    effect of its values. Every row still adds up to its prediction; intervals keep their relative
    width.

    Args:
        found: by a forest.
        parents: by parameter, those that its condition reads.
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
