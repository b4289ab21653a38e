"""Accuracy on machines and with frameworks without any measurement.

    python -m benchmarks.cost_model.unseen --truth FOLDER [--by COLUMN...] [TABLE...]

Each table's runs of one GPU and one framework are predicted from runs that share neither, in any
table: so a search starts where both are new. The framework's habits are stated. For comparison,
they are predicted from the priors alone, and from the other tables without rows of the same models.
Then whether configurations fit is predicted from the priors, with habits stated and without.
Intervals are judged with the model left out, too. ``--by`` prints the errors by the layout's
columns (tp, pp, mbs, ...) instead, to find their cause.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.cost.model import CostModel
from analysis.sweeps.record import Table
from benchmarks.printing import machine, percent
from benchmarks.published.read import read_table
from search_spaces.cluster import Cluster
from search_spaces.frameworks import Framework
from trainer.plan.jobs import Jobs

from . import metrics
from .evaluate import BOTH_OUT, FROM_OTHERS, LEFT_OUT, ZERO_SHOT, Result, evaluate
from .failures import not_memory
from .folds import ask, leave_both_out
from .peers import Fitted, Meshtune, Predicted, Transfer, predict

GOAL = 0.10  # median error of a table
COVERAGE = (0.90, 0.98)  # of intervals that should have 95 %
HEADER = (
    "| table | rows | from the priors | from other tables | bias | in 95 % "
    "| machine and framework left out | bias | in 95 % |\n" + "|---" * 9 + "|"
)
MEMORY = (
    "| table | rows | out of memory | told right | wrongly pruned | told right, unstated "
    "| wrongly ruled out | failures ruled out |\n" + "|---" * 8 + "|"
)

COLUMNS = "| table | | rows | predicted over measured, median | 10 to 90 % |\n|---|---|---|---|---|"


def line(name: str, priors: Result, *found: Result) -> str:
    """One table's row."""
    cells = [name, str(priors.pooled.rows), percent(priors.pooled.time_error_median)]
    for s in (each.pooled for each in found):
        cells += [percent(s.time_error_median), percent(s.time_bias, signed=True)]
        cells.append(percent(s.time_covered))
    return f"| {' | '.join(cells)} |"


def unstated(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
    """Probabilities to fit for a framework without a known habit; no times."""
    nothing = np.full(len(jobs), np.nan)
    fits = CostModel(cluster, Framework(name="unstated")).supposing({}).fits(jobs)
    return Predicted(nothing, nothing, fits, nothing, nothing, nothing)


def ruled_out(jobs: Jobs, cluster: Cluster, habits: Framework) -> Predicted:
    """The same with the probabilities by which jobs are ruled out."""
    may_fit = CostModel(cluster, Framework(name="unstated")).supposing({}).predict(jobs).may_fit
    return replace(unstated(jobs, cluster, habits), fits=may_fit)


def memory_line(table: Table) -> str:
    """A table's row on predicted fitting, without failures that cannot be for memory."""
    rows = table[~not_memory(table)]
    cells = [rows.name, str(len(rows)), str(int(rows.failed.sum()))]
    asked = (predict(told, ask(rows)).fits for told in (Meshtune().fit(()), unstated, ruled_out))
    stated, ordered, out = (metrics.fitting(fits, rows.failed) for fits in asked)
    cells += [percent(stated.accuracy), percent(stated.wrongly_pruned), percent(ordered.accuracy)]
    cells += [percent(out.wrongly_pruned), percent(out.caught) if rows.failed.any() else ""]
    return f"| {' | '.join(cells)} |"


def by(table: Table, tables: Sequence[Table], columns: Sequence[str]) -> None:
    """Print the median of predicted over measured time by columns' values."""
    ratio = np.full(len(table), np.nan)
    for fold in leave_both_out(table, tables):
        fitted: Fitted = Transfer().fit(fold.train)
        ratio[fold.rows] = predict(fitted, fold.asked).step_time_s
    ratio /= table.step_time_s
    known = np.isfinite(ratio)
    for group in columns:
        names = group.split(",")
        of = [table.nodes if n == "nodes" else getattr(table.jobs.layout, n) for n in names]
        cells = np.stack([np.broadcast_to(column, len(table)) for column in of], axis=1)
        for cell in np.unique(cells[known], axis=0):
            here = ratio[known & (cells == cell).all(axis=1)]
            low, middle, high = np.quantile(here, (0.1, 0.5, 0.9))
            said = ", ".join(f"{n} {v:g}" for n, v in zip(names, cell, strict=True))
            print(
                f"| {table.name} | {said} | {len(here)} | {middle:.2f} | {low:.2f} to {high:.2f} |"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each table, and how many reach the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, metavar="FOLDER")
    parser.add_argument(
        "--by",
        nargs="+",
        metavar="COLUMN",
        help="of the layout, or nodes; several joined by commas: each combination of values",
    )
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
    errors: dict[str, list[float]] = {"other tables": [], "neither": [], "other models": []}
    held: dict[str, list[float]] = {name: [] for name in errors}
    wide: dict[str, list[float]] = {name: [] for name in errors}
    for table in asked:
        priors = evaluate(table, tables, Meshtune(), ZERO_SHOT)
        others = evaluate(table, tables, Transfer(), FROM_OTHERS)
        out = evaluate(table, tables, Transfer(), BOTH_OUT)
        model = evaluate(table, tables, Meshtune(), LEFT_OUT)
        if priors is None or others is None or out is None or model is None:
            continue
        print(line(table.name, priors, others, out), flush=True)
        for name, scores in zip(errors, (others.pooled, out.pooled, model.pooled), strict=True):
            errors[name].append(scores.time_error_median)
            held[name].append(scores.time_covered)
            wide[name].append(scores.time_interval)
    low, high = map(percent, COVERAGE)
    for name, medians in errors.items():
        reached = sum(error <= GOAL for error in medians)
        within = sum(COVERAGE[0] <= share <= COVERAGE[1] for share in held[name])
        print(
            f"\nfrom {name}: median within {percent(GOAL)} in {reached} of {len(medians)} tables; "
            f"intervals hold {low} to {high} in {within}, in the mean "
            f"{percent(metrics.mean(held[name]))}, at a score of {metrics.mean(wide[name]):.2f}"
        )
    print("\n".join(["", MEMORY, *(memory_line(table) for table in asked)]))


def read(folder: Path) -> list[Table]:
    """The tables of training runs in a folder."""
    found = (read_table(path) for path in sorted(folder.glob("*.csv")))
    return [table for table in found if table is not None and len(table)]


if __name__ == "__main__":
    main()
