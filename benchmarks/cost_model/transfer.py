"""Constants of frameworks and kinds of GPU from tables, that hold on other machines too.

Every table has about the same weight: an equal number of rows, and a noise so wide that none
decides alone. Each fit keeps only the constants that it is made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from analysis.cost.constants import fit
from analysis.cost.fitted import OF_FRAMEWORK, OF_GPU, gpu_kind
from analysis.cost.network import UNKNOWN, likelier
from analysis.cost.step import crowded_s, step
from analysis.cost.time_constants import TimeConstants
from analysis.sweeps.record import Keys, Table
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from search_spaces.known import framework_named
from trainer.plan.jobs import Array

ROWS = 40  # of each table, machine and framework
NOISE_LOG_SD = 0.2
MODEL_LOG_SD = 0.15  # deviation of a model's rows in a table, from what the table does not state


def parts_of(tables: Iterable[Table]) -> list[Table]:
    """The timed rows of the tables, a part for each machine and framework."""
    found = []
    for table in tables:
        rows = np.isfinite(table.step_time_s) & (table.step_time_s > 0)
        for key in sorted({*zip(table.cluster[rows], table.framework[rows], strict=True)}):
            found.append(table[rows & (table.cluster == key[0]) & (table.framework == key[1])])
    return found


def cluster_of(part: Table) -> Cluster:
    """The cluster of all rows of the part."""
    return part.clusters[str(part.cluster[0])]


def of_framework(parts: Sequence[Table], name: str) -> dict[str, float]:
    """A framework's own constants, from its runs on any machine; empty without any.

    If its kernels are its own, the share of a GPU's peak that they reach is included.
    """
    habits = framework_named(name)
    own = OF_GPU if habits.own_kernels else ()
    found = [p for p in parts if p.framework[0] == name]
    return part(shared(found), (*OF_FRAMEWORK, *own)) if found else {}


def of_gpu(parts: Sequence[Table], kind: float) -> dict[str, float]:
    """A GPU's own constants: the geometric mean of the priors and of a fit to runs on its kind.

    Programs on one GPU differ in the rates that they reach by as much as GPUs differ. For an unseen
    kind of GPU the fits of all known kinds count, each once.
    """
    kinds = _kinds(parts)
    found = [TimeConstants()]
    for each in [kind] if kind in kinds else kinds:
        found.append(shared([p for p in parts if _common_kernels(p) and _kind(p) == each]))
    logs = np.mean([constants.logs() for constants in found], axis=0)
    return part(TimeConstants.from_logs(logs), OF_GPU)


def of_gpus(parts: Sequence[Table]) -> dict[float | str, dict[str, float]]:
    """Constants of each known kind of GPU, and of ``any`` other."""
    return {**{kind: of_gpu(parts, kind) for kind in _kinds(parts)}, "any": of_gpu(parts, np.nan)}


def part(constants: TimeConstants, names: Sequence[str]) -> dict[str, float]:
    """The named constants, rounded as in ``fitted.yaml``."""
    return {name: float(f"{getattr(constants, name):.4g}") for name in names}


def _kind(rows: Table) -> float:
    return gpu_kind(cluster_of(rows))


def _kinds(parts: Sequence[Table]) -> list[float]:
    return sorted({_kind(p) for p in parts if _common_kernels(p)})


def _common_kernels(rows: Table) -> bool:
    return not framework_named(str(rows.framework[0])).own_kernels


def transferred(parts: Sequence[Table], cluster: Cluster, habits: Framework) -> TimeConstants:
    """Constants of a framework on a machine on which it was not measured."""
    known = of_gpu(parts, gpu_kind(cluster)) | of_framework(parts, habits.name)
    return TimeConstants(**known)


def shared(parts: Sequence[Table]) -> TimeConstants:
    """The constants that explain several parts best together.

    All rows of one model in a part share a deviation, whatever the constants.
    """
    predictions = [_prediction(p[:: -(-len(p) // ROWS)]) for p in parts]

    def residuals(constants: TimeConstants) -> Array:
        return np.concatenate([predict(constants) for predict in predictions], axis=-1)

    return fit(TimeConstants(), residuals, NOISE_LOG_SD).constants


def _prediction(rows: Table) -> Callable[[TimeConstants], Array]:
    cluster, habits = cluster_of(rows), framework_named(str(rows.framework[0]))

    chance = UNKNOWN.crowded(rows.jobs, cluster)

    def residuals(constants: TimeConstants) -> Array:
        calm_s = step(rows.jobs, cluster, habits, constants).total
        late_s = calm_s + crowded_s(rows.jobs, constants)
        calm, late = np.log(calm_s / rows.step_time_s), np.log(late_s / rows.step_time_s)
        return without_common(likelier(calm, late, chance, NOISE_LOG_SD), rows.model)

    return residuals


def without_common(residuals: Array, models: Keys) -> Array:
    """Residuals, shape (..., n), with each model's own deviation integrated out.

    The mean of a model's residuals is scaled down as its variance grows, from noise and deviation.
    """
    found = residuals.copy()
    for model in np.unique(models):
        of = models == model
        kept = 1 / np.sqrt(1 + of.sum() * (MODEL_LOG_SD / NOISE_LOG_SD) ** 2)
        found[..., of] -= (1 - kept) * found[..., of].mean(axis=-1, keepdims=True)
    return found
