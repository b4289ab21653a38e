"""Accuracy on machines and with frameworks of which nothing was measured.

    python -m benchmarks.cost_model.unseen --truth FOLDER [TABLE...]

Each table's runs of one GPU and one framework are predicted from runs that share neither, in any
table: what a search starts with where both are new to it. The framework's habits are stated.
Beside it the priors alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from analysis.sweeps.record import Table
from benchmarks.printing import machine, percent
from benchmarks.published.read import read_table

from .evaluate import BOTH_OUT, ZERO_SHOT, Result, evaluate
from .peers import Meshtune, Transfer

GOAL = 0.10  # median error of a table
COVERAGE = (0.90, 0.98)  # of intervals that should have 95 %
HEADER = (
    "| table | rows | from the priors | machine and framework left out | bias | in 95 % |\n"
    "|---|---|---|---|---|---|"
)


def line(name: str, priors: Result, out: Result) -> str:
    """One table's row."""
    s = out.pooled
    cells = (
        *(name, str(s.rows), percent(priors.pooled.time_error_median)),
        *(percent(s.time_error_median), percent(s.time_bias, signed=True)),
        percent(s.time_covered),
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one row for each table, and how many reach the goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("tables", nargs="*", help="names; default all")
    args = parser.parse_args(arguments)
    tables = read(args.truth)
    print(machine([f"{len(tables)} tables"]), "\n")
    print(HEADER)
    errors, held = [], []
    for table in tables:
        if args.tables and table.name not in args.tables:
            continue
        priors = evaluate(table, tables, Meshtune(), ZERO_SHOT)
        out = evaluate(table, tables, Transfer(), BOTH_OUT)
        if priors is None or out is None:
            continue
        print(line(table.name, priors, out), flush=True)
        errors.append(out.pooled.time_error_median)
        held.append(out.pooled.time_covered)
    reached = sum(error <= GOAL for error in errors)
    within = sum(COVERAGE[0] <= share <= COVERAGE[1] for share in held)
    print(f"\nmedian within {percent(GOAL)}: {reached} of {len(errors)} tables; ", end="")
    print(f"intervals hold {percent(COVERAGE[0])} to {percent(COVERAGE[1])}: {within}")


def read(folder: Path) -> list[Table]:
    """The tables of training runs in a folder."""
    found = (read_table(path) for path in sorted(folder.glob("*.csv")))
    return [table for table in found if table is not None and len(table)]


if __name__ == "__main__":
    main()
