"""Accuracy of the cost model on published measurements that it was not fitted to.

    python -m benchmarks.cost_model (--truth FOLDER | TABLE...) [--json FILE] [--details]

Every table whose columns are recognised is evaluated: without any measurement (zero-shot); as a
search on a new machine starts, with the framework's and the GPU's constants from other tables, or
with the shipped constants if they were not fitted to the table; with whole models left out of the
fit, or node counts if there is only one model; and after 8 calibration rows of the same campaign,
chosen by the model. Errors are means over rows, rankings are medians over landscapes. Single runs
stated in papers are predicted zero-shot. Files can be named in place of the folder.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from analysis.sweeps.read import SWEEP
from analysis.sweeps.record import Table, TableError, read_csv
from benchmarks.printing import machine
from benchmarks.published.read import read_table
from search_spaces.known import framework_named

from . import goals, report
from .evaluate import (
    CALIBRATED,
    FROM_OTHERS,
    LEFT_OUT,
    MACHINE_OUT,
    SHIPPED,
    ZERO_SHOT,
    Result,
    evaluate,
)
from .fit import fitted_tables
from .peers import Meshtune, Predictor, Shipped, Transfer, predictors
from .statements import Statement, read_statements

FEW = 6  # missing columns, below which a table was probably meant to be a sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Evaluate and print; returns 2 if a table cannot be read, after evaluating all others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--truth", type=Path, help="folder of measured tables")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--details", action="store_true", help="also every landscape's ranking")
    parser.add_argument("tables", nargs="*", help="names of tables in the folder, or files")
    args = parser.parse_args(arguments)
    if args.truth is None and not args.tables:
        parser.error("name a folder of measured tables with --truth, or tables")
    try:
        tables, statements, unknown, wrong = _read(args.truth, args.tables)
    except (TableError, OSError) as error:
        print(error)
        return 2
    known, said = predictors()
    print(machine(said), "\n")
    if unknown:
        print(f"Not recognised, and left alone: {', '.join(unknown)}\n")
    if wrong:
        print("\n".join(["Left out, since it cannot be read:", *wrong]), "\n")
    rows, written = [], []
    for table in tables:
        results = _results(table, tables, known)
        _print(table, results, args.details)
        rows += goals.judged(table, results, Meshtune.name)
        written.append(report.as_json(table, results))
    if statements:
        # None of these runs is in a table, so the shipped constants were not fitted to them.
        asked = {**{p.name: p for p in known}, f"{Meshtune.name}, {SHIPPED}": Shipped()}
        values = {name: [s.predicted(p.fit(())) for s in statements] for name, p in asked.items()}
        print("## Stated of single runs, zero-shot\n")
        print(report.statements(statements, values), "\n")
        rows += goals.judged_statements(statements, values[f"{Meshtune.name}, {SHIPPED}"])
        written.append(report.statements_json(statements, values))
    print("## Goals\n")
    print("\n".join([goals.HEADER, *rows]), "\n")
    print(goals.PUBLISHED)
    if args.json:
        args.json.write_text(json.dumps(written, indent=1) + "\n")
    return 2 if wrong else 0


def _read(
    truth: Path | None, names: Sequence[str]
) -> tuple[list[Table], list[Statement], list[str], list[str]]:
    """Tables, statements, lines on files that are neither, and errors of unreadable tables."""
    if truth is not None and not truth.is_dir():
        raise TableError(f"{truth}: no such folder; name another with --truth, or tables")
    paths = [_path(truth, name) for name in names]
    if truth is not None and not names:
        paths = sorted(truth.glob("*.csv"))
    tables, statements, unknown, wrong = [], [], [], []
    for path in paths:
        try:
            table = read_table(path)
        except TableError as error:
            wrong.append(str(error))
            continue
        stated = [] if table is not None else read_statements(path)
        if table is not None:
            tables.append(table)
        elif stated:
            statements += stated
        else:
            lacks = sorted(SWEEP - {*read_csv(path).columns})
            why = f" (no column {', '.join(lacks)})" if len(lacks) < FEW else ""
            unknown.append(f"{path.name}{why}")
    return tables, statements, unknown, wrong


def _path(truth: Path | None, name: str) -> Path:
    given = Path(name)
    return given if truth is None or given.is_file() else truth / given.with_suffix(".csv")


def _results(table: Table, tables: Sequence[Table], known: Sequence[Predictor]) -> list[Result]:
    if not len(table):
        return []
    found = [
        evaluate(table, tables, predictor, scheme)
        for predictor in known
        for scheme in (ZERO_SHOT, LEFT_OUT, CALIBRATED)
    ]
    start = [evaluate(table, tables, Transfer(), FROM_OTHERS)]
    if framework_named(str(table.framework[0])).own_kernels:
        # Points of many machines: the framework's constants are fitted to all of them.
        start += [evaluate(table, tables, Transfer(), way) for way in (MACHINE_OUT, LEFT_OUT)]
    if fitted_tables().get(table.name) != len(table):
        start.append(evaluate(table, tables, Shipped(), SHIPPED))
    found[1:1] = start
    return [result for result in found if result is not None]


def _print(table: Table, results: Sequence[Result], details: bool) -> None:
    print(f"## {table.name}\n\n{report.about(table)}\n")
    if not results:
        return
    print(report.HEADER)
    for result in results:
        for text in report.lines(result, folds=result.scheme == LEFT_OUT):
            print(text)
    print()
    for result in results:
        if result.scheme == LEFT_OUT and (text := report.reliability(result)):
            print(text, "\n")
        if details and result.scheme == LEFT_OUT and result.pooled.rankings:
            print(report.landscapes(result), "\n")


if __name__ == "__main__":
    raise SystemExit(main())
