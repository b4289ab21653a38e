"""Other predictors and the cost model on the very same measured runs.

    python -m benchmarks.cost_model.side_by_side --truth FOLDER [--simumax CHECKOUT]
        [--estimate-train-time CHECKOUT] [TABLE...]

Compared are the runs of every recognised table that a peer can express (a sample of large tables),
and the runs that SimuMax was published with. Peers predict from their own files of measured
operators. The cost model predicts from its priors; from other tables without this one's models; and
with each of the table's models left out of the fit. Nothing is downloaded: without a peer's
checkout the benchmark says that there is nothing to compare with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from analysis.sweeps.record import Table
from benchmarks.printing import machine, percent
from benchmarks.published.read import read_table
from trainer.plan.jobs import Mask

from .estimate_train_time import EstimateTrainTime
from .evaluate import Scores, score
from .folds import Fold, ask, from_others, leave_one_out, zero_shot
from .peers import Meshtune, Predicted, Predictor, Transfer, predict
from .simumax import MissingError, SimuMax
from .simumax_runs import published_s, read_runs

Peer = SimuMax | EstimateTrainTime
MOST = 100  # rows of a table
HEADER = (
    "| runs | peer | rows of | time error, mean (median), bias: peer | meshtune, from the priors "
    "| from other tables | model left out | memory error: peer | meshtune, from the priors "
    "| model left out |\n" + "|---" * 10 + "|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; 0 also where there is nothing to compare with."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost_model.side_by_side",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--truth", type=Path, required=True, help="folder of measured tables")
    for name in ("--simumax", "--estimate-train-time"):
        parser.add_argument(name, type=Path, metavar="CHECKOUT", help="of its repository")
    parser.add_argument("--rows", type=int, default=MOST, metavar="N", help="of a table at most")
    parser.add_argument("tables", nargs="*", help="names of tables; default all")
    args = parser.parse_args(arguments)
    peers = [*_found(SimuMax, args.simumax), *_found(EstimateTrainTime, args.estimate_train_time)]
    if not peers:
        print("nothing to compare with: name a checkout by --simumax or --estimate-train-time")
        return 0
    read = [read_table(path) for path in sorted(args.truth.glob("*.csv"))]
    tables = [table for table in read if table is not None and len(table)]
    print(machine([peer.name for peer in peers]), "\n")
    print(HEADER, flush=True)
    refused: list[str] = []
    for table in [t for t in tables if not args.tables or t.name in args.tables]:
        for peer in peers:
            _compare(table, tables, peer, args.rows)
            said = [f"{table.name}: {n} rows, {why}" for why, n in peer.refused.items()]
            refused += [f"{peer.name}: {line}" for line in said]
            peer.refused.clear()
    if any(isinstance(peer, SimuMax) for peer in peers):
        print(_own_runs(args.simumax, tables))
    print("\n".join(["", "Not expressed:", *refused]))
    return 0


def _found(peer: Callable[[Path], Peer], folder: Path | None) -> list[Peer]:
    """A peer whose checkout was named; none, and a printed sentence, if it is unusable."""
    if folder is None:
        return []
    try:
        return [peer(folder)]
    except MissingError as error:
        print(error)
        return []


def _own_runs(folder: Path, tables: Sequence[Table]) -> str:
    """A line on SimuMax's own runs: the largest deviation from its published predictions."""
    try:
        runs = read_runs(folder)
    except MissingError as error:
        return str(error)
    found = _compare(runs, tables, SimuMax(folder, fused_loss=True), len(runs))
    off = float(np.abs(found.step_time_s / published_s(folder) - 1).max())
    return f"\nSimuMax's own runs: {percent(off)} at most from what it publishes"


def some(table: Table, count: int) -> Mask:
    """Mask of at most ``count`` rows, evenly spread over those that ran."""
    ran = np.flatnonzero(np.isfinite(table.step_time_s))
    chosen = np.zeros(len(table), dtype=bool)
    chosen[ran[np.linspace(0, len(ran) - 1, min(count, len(ran))).round().astype(int)]] = True
    return chosen


def _compare(table: Table, tables: Sequence[Table], peer: Peer, count: int) -> Predicted:
    """Print a table's line if the peer can express any row; returns the peer's predictions."""
    asked = np.flatnonzero(some(table, count))
    said = predict(peer.fit(()), ask(table[asked]))
    known = np.isfinite(said.step_time_s)
    rows = asked[known]
    if len(rows):
        theirs = score(table[rows], _rows(said, known))
        ours = [
            score(table[rows], _rows(_predicted(predictor, folds, len(table)), rows))
            for predictor, folds in (
                (Meshtune(), zero_shot(table)),
                (Transfer(), from_others(table, tables)),
                (Meshtune(), leave_one_out(table, tables)),
            )
        ]
        priors, _, left_out = ours
        memory = [percent(s.memory_error) for s in (theirs, priors, left_out)]
        cells = [f"{len(rows)} of {len(asked)}", *map(_time, (theirs, *ours)), *memory]
        print(f"| {table.name} | {peer.name} | {' | '.join(cells)} |", flush=True)
    return said


def _time(s: Scores) -> str:
    bias = percent(s.time_bias, signed=True)
    return f"{percent(s.time_error)} ({percent(s.time_error_median)}), {bias}"


def _predicted(predictor: Predictor, folds: Iterable[Fold], count: int) -> Predicted:
    """Predictions of all rows of a table, each in the fold that leaves it out."""
    columns = {f.name: np.full(count, np.nan) for f in fields(Predicted)}
    for fold in folds:
        part = predict(predictor.fit(fold.train), fold.asked)
        for name, values in columns.items():
            values[fold.rows] = getattr(part, name)
    return Predicted(**columns)


def _rows(predicted: Predicted, rows: np.ndarray) -> Predicted:
    return Predicted(*(getattr(predicted, f.name)[rows] for f in fields(Predicted)))


if __name__ == "__main__":
    raise SystemExit(main())
