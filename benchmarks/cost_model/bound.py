"""Bound of calibration: the error after a fit to the predicted rows themselves.

    python -m benchmarks.cost_model.bound TABLE.csv

Not an evaluation: the model predicts the rows that it was fitted to. The bound distinguishes a
calibration that learns too little from formulas that cannot express more. Runs that took more than
twice the time that even such a fit predicts were disturbed, or do what no term has.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from analysis.cost.model import CostModel
from analysis.sweeps.record import Table
from benchmarks.printing import percent
from benchmarks.published.read import read_table
from search_spaces.known import framework_named
from trainer.plan.jobs import Array

from .fit import measurements_of
from .metrics import mean, median, relative_errors
from .transfer import cluster_of

DISTURBED = 2.0


def main() -> int:
    """Print the errors of fits to all rows of each landscape."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    table = read_table(parser.parse_args().table)
    if table is None:
        print("not recognised as a table of measured runs")
        return 2
    ratios = np.concatenate([*_ratios(table)])
    usual = ratios > 1 / DISTURBED
    ones = np.ones(len(ratios))
    print("| rows | n | time error, mean | median |\n|---|---|---|---|")
    for name, rows in (("all", usual | ~usual), ("without disturbed ones", usual)):
        errors = relative_errors(ratios[rows], ones[rows])
        print(f"| {name} | {rows.sum()} | {percent(mean(errors))} | {percent(median(errors))} |")
    return 0


def _ratios(table: Table) -> Iterator[Array]:
    """Predicted over measured of each landscape's runs, by a fit to the table and then to them."""
    for key in np.unique(table.landscape):
        rows = table[table.landscape == key]
        cluster, habits = cluster_of(rows), framework_named(str(rows.framework[0]))
        same = table[(table.cluster == cluster.name) & (table.framework == habits.name)]
        model = CostModel(cluster, habits).calibrated(measurements_of([same]))
        model = model.calibrated(measurements_of([rows]))
        ratios = model.predict(rows.jobs).step_time_s / rows.step_time_s
        yield ratios[np.isfinite(ratios)]


if __name__ == "__main__":
    raise SystemExit(main())
