"""Cost models that are wrong on purpose, to measure what the search loses by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

import numpy as np

from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel, Prediction
from analysis.cost.step import StepParts
from analysis.prediction.pricing import Pricing
from trainer.plan.jobs import Array, Jobs
from workflows.replay.landscape import Landscape

Permutation = Callable[[Array, np.random.Generator], np.ndarray]


def shuffled(step_time_s: Array, rng: np.random.Generator) -> np.ndarray:
    """A permutation by which every configuration is predicted to take the time of another."""
    return rng.permutation(len(step_time_s))


def inverted(step_time_s: Array, rng: np.random.Generator) -> np.ndarray:
    """The permutation by which the fastest configuration is predicted to be the slowest, etc."""
    order = np.argsort(step_time_s, kind="stable")
    taken = np.empty(len(order), dtype=int)
    taken[order] = order[::-1]
    return taken


@dataclass(frozen=True)
class WrongModel(CostModel):
    """Predicts for one configuration the time of another; memory as the model predicts it.

    Attributes:
        known: all jobs of the landscape.
        taken: for each of them the row of ``known`` whose time is predicted.
    """

    known: Jobs = field(kw_only=True)
    taken: np.ndarray = field(kw_only=True)

    def predict(self, jobs: Jobs) -> Prediction:
        rows = self.taken[self._rows(jobs)]
        return replace(super().predict(jobs), time=_rows_of(super().predict(self.known).time, rows))

    def calibrated(self, measurements: Measurements) -> CostModel:
        others = replace(measurements, jobs=self.known[self.taken[self._rows(measurements.jobs)]])
        memory = super().calibrated(measurements).memory
        return replace(super().calibrated(others), memory=memory)

    def _rows(self, jobs: Jobs) -> np.ndarray:
        every = {row: index for index, row in enumerate(_identities(self.known))}
        return np.array([every[row] for row in _identities(jobs)], dtype=int)


def start_from(pricing: Pricing, model: CostModel) -> None:
    """Take over another model's constants; machine and framework stay the space's."""
    own = pricing.model
    pricing.model = replace(model, cluster=own.cluster, framework=own.framework, others=own.others)


def wrong(
    landscape: Landscape, permutation: Permutation, seed: int, model: CostModel | None
) -> CostModel:
    """A landscape's cost model with permuted times.

    Args:
        landscape: the landscape to search.
        permutation: gives for each configuration the row whose time is predicted.
        seed: of the permutation.
        model: has the right constants; by default the cost model's own.
    """
    pricing = Pricing(landscape.space)
    if model is not None:
        start_from(pricing, model)
    right, jobs = pricing.model, pricing.jobs_of(landscape.configs)
    taken = permutation(right.predict(jobs).step_time_s, np.random.default_rng(seed))
    own = {f.name: getattr(right, f.name) for f in fields(right)}
    return WrongModel(**own, known=jobs, taken=taken)


def _identities(jobs: Jobs) -> list[tuple[float | str, ...]]:
    columns = [column.tolist() for column in jobs.columns().values()]
    columns.append(jobs.stages.pipeline_layout.tolist())
    return [*zip(*columns, strict=True)]


def _rows_of(parts: StepParts, rows: np.ndarray) -> StepParts:
    return StepParts(**{f.name: getattr(parts, f.name)[rows] for f in fields(parts)})
