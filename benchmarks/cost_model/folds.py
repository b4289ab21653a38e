"""Folds: rows to fit to, and rows to predict.

A fold is made from a mask: rows under it are predicted, and only rows outside of it are passed to
the fit. Rows to predict come without their measured columns, so no predictor can see them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.cost.fitted import gpu_kind
from analysis.sweeps.record import Keys, Table
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from search_spaces.known import framework_named
from trainer.plan.jobs import Array, Indices, Jobs, Mask


@dataclass(frozen=True)
class Questions:
    """Jobs to be predicted: a table without what was measured."""

    jobs: Jobs
    clusters: Mapping[str, Cluster]
    cluster: Keys
    framework: Keys
    habits: Mapping[str, NDArray[np.object_]]

    def __len__(self) -> int:
        return len(self.jobs)

    def alike(self) -> Iterator[tuple[Cluster, Framework, Indices]]:
        """Rows of one machine and one framework, with the habits that they state."""
        found: dict[tuple[object, ...], list[int]] = {}
        for row in range(len(self)):
            said = [(name, c[row]) for name, c in self.habits.items() if c[row] is not None]
            found.setdefault((self.cluster[row], self.framework[row], *said), []).append(row)
        for (cluster, name, *said), rows in found.items():
            habits = framework_named(str(name)).with_habits(**dict(said))
            yield self.clusters[str(cluster)], habits, np.array(rows)


@dataclass(frozen=True)
class Fold:
    """One part of a table to be predicted from other rows.

    Attributes:
        name: the model, machine or number of nodes that is left out.
        train: tables without any row of it.
        asked: the jobs to predict.
        rows: mask of these jobs in their table, which has the measurements.
    """

    name: str
    train: tuple[Table, ...]
    asked: Questions
    rows: Mask


def ask(table: Table) -> Questions:
    """A table's jobs without their measurements."""
    return Questions(table.jobs, table.clusters, table.cluster, table.framework, table.habits)


def zero_shot(table: Table) -> Iterator[Fold]:
    """All rows, predicted without any measurement."""
    rows = np.ones(len(table), dtype=bool)
    yield Fold("zero-shot", (), ask(table), rows)


def from_others(table: Table, others: Sequence[Table]) -> Iterator[Fold]:
    """All rows, predicted from the other tables without rows of the models of this one."""
    models = np.unique(table.model)
    train = [t[~np.isin(t.model, models)] for t in others if t.name != table.name]
    yield _fold("from other tables", table, np.ones(len(table), dtype=bool), train)


def leave_one_out(table: Table, others: Sequence[Table] = ()) -> Iterator[Fold]:
    """A fold for each model of the table, or for each number of nodes if it has one model.

    A model's fold leaves out every row of that model, in the other tables too. The fold of a number
    of nodes leaves out the table's rows at that number, and all rows of the model in other tables.
    """
    models = np.unique(table.model)
    others = [other for other in others if other.name != table.name]
    if len(models) > 1:
        for model in models:
            train = [t[t.model != model] for t in (table, *others)]
            yield _fold(f"without {model}", table, table.model == model, train)
        return
    for count in np.unique(table.nodes) if len(table) else ():
        train = [table[table.nodes != count], *[t[~np.isin(t.model, models)] for t in others]]
        yield _fold(f"without {count:g} nodes", table, table.nodes == count, train)


def leave_machine_out(table: Table, others: Sequence[Table]) -> Iterator[Fold]:
    """A fold for each of several machines, whose rows are left out in all tables."""
    if len(np.unique(table.cluster)) < 2:
        return
    others = [other for other in others if other.name != table.name]
    for machine in np.unique(table.cluster):
        train = [t[t.cluster != machine] for t in (table, *others)]
        yield _fold(f"without {machine}", table, table.cluster == machine, train)


def leave_both_out(table: Table, others: Sequence[Table]) -> Iterator[Fold]:
    """A fold for each GPU and framework: rows that share either are left out in all tables."""
    tables = (table, *[other for other in others if other.name != table.name])
    kinds = [_kinds(t) for t in tables]
    for kind, name in sorted({*zip(kinds[0].tolist(), table.framework.tolist(), strict=True)}):
        rows = (kinds[0] == kind) & (table.framework == name)
        train = [
            t[(own != kind) & (t.framework != name)] for t, own in zip(tables, kinds, strict=True)
        ]
        yield _fold(f"without {name} and GPUs of {kind:g} TFLOP/s", table, rows, train)


def _kinds(table: Table) -> Array:
    """The kind of each row's GPU."""
    kinds = {key: gpu_kind(cluster) for key, cluster in table.clusters.items()}
    return np.array([kinds[str(key)] for key in table.cluster])


def after_calibration(base: Fold, table: Table, chosen: Mask, name: str) -> Fold:
    """The fold after the chosen rows were measured: the rest, without repeats of these."""
    if np.any(chosen & ~base.rows):
        raise ValueError("calibration rows are not of the fold")
    rest = base.rows & ~_repeats(table.jobs, chosen)
    return _fold(name, table, rest, [table[chosen], *base.train])


def choose(
    expected_s: Array, fits: Array, rows: Mask, count: int, random: np.random.Generator
) -> Mask:
    """Rows to measure first: spread over the predicted times of those predicted to fit.

    One row is drawn from each of ``count`` equal parts of the ranking, so the choice uses
    predictions alone.
    """
    candidates = np.flatnonzero(rows)
    likely = candidates[~(fits[candidates] < 0.5)]
    if likely.size >= count:
        candidates = likely
    ranked = candidates[np.argsort(expected_s[candidates], kind="stable")]
    chosen = np.zeros(len(rows), dtype=bool)
    for part in np.array_split(ranked, count):
        if part.size:
            chosen[random.choice(part)] = True
    return chosen


def _fold(name: str, table: Table, rows: Mask, train: Sequence[Table]) -> Fold:
    return Fold(name, tuple(t for t in train if len(t)), ask(table[rows]), rows)


def _repeats(jobs: Jobs, chosen: Mask) -> Mask:
    """Rows with the same job as a chosen row, which is included."""
    columns = np.stack([*jobs.columns().values()], axis=1)
    seen = {row.tobytes() for row in columns[chosen]}
    return np.array([row.tobytes() in seen for row in columns], dtype=bool)
