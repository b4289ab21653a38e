"""Constants that one cost model may take over from another that was calibrated elsewhere.

Constants belong to the framework, to the GPU, or to the machine's network (see
``analysis.cost.fitted``). Constants of what two models do not share are not taken over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from analysis.cost.constants import Array, Constants, names
from analysis.cost.fitted import OF_FRAMEWORK, OF_GPU, gpu_kind
from analysis.cost.memory import MemoryConstants
from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from analysis.cost.time_constants import TimeConstants


def shared(model: CostModel, other: CostModel) -> list[str]:
    """Names of the time constants of the framework, GPU and network that both models share."""
    other = _like(model, other)
    framework = model.framework.name == other.framework.name
    gpu = gpu_kind(model.cluster) == gpu_kind(other.cluster)
    network = model.cluster.name == other.cluster.name
    return [
        name
        for name in names(TimeConstants)
        if (framework if name in OF_FRAMEWORK else gpu if name in OF_GPU else network)
    ]


def taken_over(model: CostModel, other: CostModel) -> CostModel:
    """``model`` with the values of ``other`` for the constants that both share.

    Constants of memory are taken over if the framework is the same. The scatter of step times only
    grows: within one run it is less than between models or numbers of nodes. Of several engines,
    each takes over from the one of its framework, or else from the first.
    """
    if model.others or other.others:
        return CostModel.of_engines(taken_over(one, _like(one, other)) for one in model.engines)
    values = {name: getattr(other.constants, name) for name in shared(model, other)}
    taken = np.array([name in values for name in names(TimeConstants)])
    found = replace(model, constants=replace(model.constants, **values))
    if other.covariance is not None:
        covariance = np.zeros_like(other.covariance)
        for one, rows in ((other, taken), (model, ~taken)):
            kept = one.constants.covariance(one.covariance)
            covariance[np.ix_(rows, rows)] = kept[np.ix_(rows, rows)]
        found = replace(found, covariance=covariance, foreign=True)
    if model.framework.name == other.framework.name:
        found = replace(found, memory=other.memory)
    tail = max(model.tail_log_sd, other.tail_log_sd)
    return replace(found, log_sd=max(model.log_sd, other.log_sd), tail_log_sd=tail)


def likeliest(models: Mapping[str, CostModel], measurements: Measurements) -> str:
    """Name of the model with most evidence from step times, with its constants integrated out."""
    if len(models) == 1:
        return next(iter(models))
    return max(models, key=lambda name: models[name].evidence(measurements))


def _like(model: CostModel, other: CostModel) -> CostModel:
    """The engine of ``other`` that is of the same framework; else its first."""
    same = [one for one in other.engines if one.framework.name == model.framework.name]
    return (same or [other.engines[0]])[0]


def discounted(model: CostModel, before: CostModel) -> CostModel:
    """A model that was calibrated with a run, as a start for other runs.

    A calibration first widens the covariance (``transferred``), since the run may be another case,
    and the next calibration widens it again. So that this does not add up, the run's information is
    added to the covariance that the model had ``before``, not to the widened one.
    """
    if model.others:
        pairs = zip(model.engines, before.engines, strict=True)
        return CostModel.of_engines(discounted(*pair) for pair in pairs)
    time = _more(TimeConstants, before.covariance, model.covariance)
    memory = _more(MemoryConstants, before.memory.covariance, model.memory.covariance)
    return replace(model, covariance=time, memory=replace(model.memory, covariance=memory))


def _more(kind: type[Constants], known: Array | None, after: Array | None) -> Array | None:
    """Known covariance with the information that a run added to its calibration's prior."""
    if after is None or after is known:
        return after
    inverse, start = np.linalg.inv, kind.covariance(kind.transferred(known))
    return np.asarray(inverse(inverse(kind.covariance(known)) + inverse(after) - inverse(start)))
