"""Accuracy on machines and with frameworks of which nothing was measured.

    python -m benchmarks.cost_model.unseen --truth FOLDER [--by COLUMN...] [TABLE...]

Each table's runs of one GPU and one framework are predicted from runs that share neither, in any
table: what a search starts with where both are new to it. The framework's habits are stated.
Beside it the priors alone. Then whether configurations fit, from the priors, with habits stated
and without. ``--by`` prints the errors by layout's columns (tp, pp, mbs, ...) instead,
to find their cause.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.cost.model import CostModel
from analysis.sweeps.record import Table
from benchmarks.printing import machine, percent
from benchmarks.published.read import read_table
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from trainer.plan.jobs import Array, Jobs

from . import metrics
from .evaluate import BOTH_OUT, ZERO_SHOT, Result, evaluate
from .failures import not_memory
from .folds import ask, leave_both_out
from .peers import Fitted, Meshtune, Predicted, Transfer, predict

GOAL = 0.10  # median error of a table
COVERAGE = (0.90, 0.98)  # of intervals that should have 95 %
HEADER = (
    "| table | rows | from the priors | machine and framework left out | bias | in 95 % |\n"
    "|---|---|---|---|---|---|"
)
MEMORY = (
    "| table | rows | out of memory | told right | wrongly pruned | told right, unstated "
    "| wrongly pruned |\n|---|---|---|---|---|---|---|"
)

COLUMNS = "| table | | rows | predicted over measured, median | 10 to 90 % |\n|---|---|---|---|---|"


def line(name: str, priors: Result, out: Result) -> str:
    """One table's row."""
    s = out.pooled
    cells = (
        *(name, str(s.rows), percent(priors.pooled.time_error_median)),
        *(percent(s.time_error_median), percent(s.time_bias, signed=True)),
        percent(s.time_covered),
    )
    return f"| {' | '.join(cells)} |"


def unstated(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
    """Probabilities to fit of a framework of which no habit is known; no times."""
    model = CostModel(cluster, Framework(name="unstated")).supposing({})
    nothing = np.full(len(jobs), np.nan)
    return Predicted(nothing, nothing, model.fits(jobs), nothing, nothing, nothing)


def memory_line(table: Table) -> str:
    """Row of what is told of fitting, but for failures that cannot be for memory."""
    rows = table[~not_memory(table)]
    cells = [rows.name, str(len(rows)), str(int(rows.failed.sum()))]
    for told in (Meshtune().fit(()), unstated):
        scores = metrics.fitting(predict(told, ask(rows)).fits, rows.failed)
        cells += [percent(scores.accuracy), percent(scores.wrongly_pruned)]
    return f"| {' | '.join(cells)} |"


def by(table: Table, tables: Sequence[Table], columns: Sequence[str]) -> None:
    """Print the median of predicted over measured time by columns' values."""
    ratio = np.full(len(table), np.nan)
    for fold in leave_both_out(table, tables):
        fitted: Fitted = Transfer().fit(fold.train)
        ratio[fold.rows] = predict(fitted, fold.asked).step_time_s
    ratio /= table.step_time_s
    known = np.isfinite(ratio)
    for column in columns:
        values: Array = table.nodes if column == "nodes" else getattr(table.jobs.layout, column)
        for value in np.unique(values[known]):
            here = ratio[known & (values == value)]
            low, middle, high = np.quantile(here, (0.1, 0.5, 0.9))
            print(
                f"| {table.name} | {column} {value:g} | {len(here)} "
                f"| {middle:.2f} | {low:.2f} to {high:.2f} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each table, and how many reach the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--by", nargs="+", metavar="COLUMN", help="of the layout, or nodes")
    parser.add_argument("tables", nargs="*", help="names; default all")
    args = parser.parse_args(arguments)
    tables = read(args.truth)
    asked = [table for table in tables if not args.tables or table.name in args.tables]
    print(machine([f"{len(tables)} tables"]), "\n")
    if args.by:
        print(COLUMNS)
        for table in asked:
            by(table, tables, args.by)
        return
    print(HEADER)
    errors, held = [], []
    for table in asked:
        priors = evaluate(table, tables, Meshtune(), ZERO_SHOT)
        out = evaluate(table, tables, Transfer(), BOTH_OUT)
        if priors is None or out is None:
            continue
        print(line(table.name, priors, out), flush=True)
        errors.append(out.pooled.time_error_median)
        held.append(out.pooled.time_covered)
    reached = sum(error <= GOAL for error in errors)
    within = sum(COVERAGE[0] <= share <= COVERAGE[1] for share in held)
    low, high = map(percent, COVERAGE)
    print(f"\nmedian within {percent(GOAL)}: {reached} of {len(errors)} tables")
    print(f"intervals hold {low} to {high}: {within}; mean {percent(metrics.mean(held))}\n")
    print("\n".join([MEMORY, *(memory_line(table) for table in asked)]))


def read(folder: Path) -> list[Table]:
    """The tables of training runs in a folder."""
    found = (read_table(path) for path in sorted(folder.glob("*.csv")))
    return [table for table in found if table is not None and len(table)]


if __name__ == "__main__":
    main()
