"""Figure 10 of Dash et al. 2023 on a simulated Frontier: ``python -m benchmarks.report.table4``.

Table IV's space is searched on 128 nodes for an hour of virtual time: by DeepHyper, as in the
paper, and at random. Parameters are ranked by mean |SHAP| of a forest on either one's successes, of
one on all trials, a failure counting as 0 TFLOP/s, and by the calibrated cost model over every
configuration that likely fits; each beside the paper's order.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence

import pandas as pd
from scipy.stats import spearmanr

from analysis import NotEnough, Pricing, objective_sensitivity
from analysis.report.outlook import Outlook
from analysis.report.sensitivity import model_sensitivity
from analysis.run.frame import frame_of
from benchmarks.printing import machine
from benchmarks.search.figure9 import HOUR_S, TABLE_4, simulate
from search_spaces import load_space
from workflows.search.budget import Budget

PAPER = ("mbs", "tp", "pp", "num_nodes", "zero_stage")
"""From the largest mean |SHAP| to the least: section IV, Figure 10."""


def accounts(seed: int) -> Mapping[str, pd.Series[float]]:
    """Mean |SHAP| of every parameter in TFLOP/s per GPU, by account; not where trials are few."""
    found: dict[str, pd.Series[float]] = {}
    pricing = Pricing(load_space(TABLE_4))
    for policy in ("deephyper", "random"):
        run = simulate(TABLE_4, policy, seed, Budget(wall_time_s=HOUR_S))
        frame = frame_of(run)
        nothing = frame.assign(kind="ok", objective=frame["objective"].fillna(0.0))
        for trials, rows in (("its successes", frame), ("all its trials", nothing)):
            try:
                account = objective_sensitivity(rows, seed)
            except NotEnough:
                continue
            score = f"{account.total}, out-of-bag R² {account.oob_score:.2f}"
            found[f"{policy}: {trials} ({score})"] = account.mean_abs
        if policy == "deephyper":
            likely = model_sensitivity(Outlook(run, pricing, seed), seed).found.mean_abs
            found["deephyper: cost model over what likely fits"] = likely
    return found


def row(name: str, means: pd.Series[float]) -> str:
    """Its order with figures, and how far that is the paper's."""
    listed = ", ".join(f"{parameter} {mean:.2f}" for parameter, mean in means.items())
    known = means.reindex(PAPER).fillna(0.0)
    rank = spearmanr(known, range(len(PAPER), 0, -1)).statistic
    return f"| {name} | {listed} | {rank:.2f} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report.table4", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    began = time.process_time()
    print(machine([f"{arguments.seeds} seed(s)"]))
    print(f"\nThe paper's order: {', '.join(PAPER)}")
    print(
        "\n| account | mean abs(SHAP), TFLOP/s per GPU | rank correlation with it |\n|---|---|---|"
    )
    for seed in range(arguments.seeds):
        for name, means in accounts(seed).items():
            print(row(f"seed {seed}, {name}", means), flush=True)
    print(f"\n{time.process_time() - began:.0f} s of CPU")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
