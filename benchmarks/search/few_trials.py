"""A cost model fitted to other language models, after one to three trials of a new one.

    python -m benchmarks.search.few_trials --truth FOLDER

Each model of a table is left out in turn, and the constants are fitted to the others. One to three
drawn runs of the model calibrate them, as a search's first trials do. Its other runs are judged by
the scatter of their errors, on which the ranking depends, and by their median error. Then the same
with the first of the drawn runs 1.3 to 3 times as slow, as on a disturbed machine. Both are played
with the search's prior, and with one widened by TRANSFER even beyond the prior before any run.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from analysis.cost.constants import TRANSFER
from analysis.cost.memory_fit import Measurements
from analysis.cost.model import CostModel
from analysis.cost.time_constants import TimeConstants
from analysis.sweeps.record import Table
from benchmarks.published.read import read_table
from benchmarks.search.games import LeftOut

DRAWS = 5  # sets of trials for each model
MOST = 12  # models of a table
LEAST = 6  # runs of a model that is left out
PRIORS = {
    "bounded": TimeConstants.transferred,
    "wider": staticmethod(lambda learnt: None if learnt is None else TRANSFER**2 * learnt),
}


def judged(model: CostModel, rows: Table, picked: np.ndarray, slower: float) -> tuple[float, float]:
    """Scatter and median of the other runs' log errors, after calibration with the picked ones."""
    seconds = rows.step_time_s[picked].copy()
    seconds[0] *= slower
    unknown = np.full(len(picked), np.nan)
    told = Measurements(rows.jobs[picked], seconds, unknown, np.zeros(len(picked), dtype=bool))
    off = np.log(rows.step_time_s / model.calibrated(told).predict(rows.jobs).step_time_s)
    off = np.delete(off, picked)
    return float(off.std()), float(np.median(np.abs(off)))


def games(table: Table) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """For each calibration: how its trials went, and the judged figures for each prior."""
    one = (table.cluster == table.cluster[0]) & (table.framework == table.framework[0])
    table, rng = table[one], np.random.default_rng(0)
    left, ran = LeftOut(table), table[~table.failed & np.isfinite(table.step_time_s)]
    every = sorted(set(ran.model))
    for name in every[:: -(-len(every) // MOST)] if len(every) > 1 else []:
        rows = ran[ran.model == name]
        if len(rows) < LEAST:
            continue
        model = left.without(name)
        for _ in range(DRAWS):
            picked = rng.permutation(len(rows))[: rng.integers(1, 4)]
            for how, slower in (
                ("as measured", 1.0),
                ("the first slow", np.exp(rng.uniform(0.26, 1.1))),
            ):
                found = []
                for transferred in PRIORS.values():
                    with patch.object(TimeConstants, "transferred", transferred):
                        found.append(judged(model, rows, picked, slower))
                yield how, found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.few_trials")
    parser.add_argument("--truth", type=Path, required=True, metavar="DIR")
    parser.add_argument("--without", default="sweep", help="a form of tables to leave out")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    each = f"{', '.join(PRIORS)}; ratio"
    print(
        f"| table | trials | games | scatter: {each} | median error: {each} |\n" + "|---" * 5 + "|"
    )
    for path in sorted(arguments.truth.glob("*.csv")):
        table = read_table(path)
        if table is None or not len(table) or table.form == arguments.without:
            continue
        by_kind = defaultdict(list)
        for how, found in games(table):
            by_kind[how].append(found)
        for how, every in by_kind.items():
            logs = np.log(np.maximum(np.array(every), 1e-4))  # games, priors, figures
            texts = []
            for bounded, wider in np.moveaxis(logs, 0, -1).transpose(1, 0, 2):
                ratio = bounded - wider
                edge = 1.96 * ratio.std(ddof=1) / np.sqrt(len(ratio))
                low, middle, high = np.exp(ratio.mean() + edge * np.array([-1, 0, 1]))
                both = ", ".join(f"{np.exp(part.mean()):.3f}" for part in (bounded, wider))
                texts.append(f"{both}; x {middle:.2f} ({low:.2f} to {high:.2f})")
            print(f"| {table.name} | {how} | {len(every)} | {' | '.join(texts)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
