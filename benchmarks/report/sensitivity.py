"""Which account of the parameters agrees with a whole landscape, after a few trials.

    python -m benchmarks.report.sensitivity --truth DIR [--trials 8] [--seeds 3]

Six recorded landscapes are searched for so many trials each, with a cost model whose constants are
fitted without the landscape's model. Parameters are ranked by mean |SHAP| of a forest on every
recorded configuration that ran: the truth. It is compared with the ranking by the calibrated cost
model and its residual over the landscape's configurations, as the report's first view has it, and
with that by a forest on the trials alone. One core, a few minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import spearmanr

from analysis import (
    NotEnough,
    Pricing,
    Run,
    frame_of,
    model_sensitivity,
    objective_sensitivity,
)
from benchmarks.cost_model.report import machine
from benchmarks.published.read import read_table
from benchmarks.search.games import LeftOut
from search_spaces import Candidates
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import landscapes
from workflows.replay.play import play, policy_for

TABLES = {
    "h100_nanotron_sweep.csv": ("1B 4 ", "1B 16 ", "1B 32 ", "8B 8 ", "8B 32 "),
    "a100_vtrain_multi_node.csv": ("48x8192 ",),
}
"""By table: the model and the number of nodes (or GPUs) that a landscape's key tells."""


def chosen(landscape: Landscape, wanted: Sequence[str]) -> bool:
    words = landscape.key.split()
    short = " ".join(w for w in words if "H100" not in w) + " "
    return any(short.startswith(want) for want in wanted)


def truth(landscape: Landscape) -> pd.Series[float]:
    """Mean |SHAP| by a forest on all that ran."""
    rows = [
        {"trial": n, "kind": "ok", "objective": landscape.medians[tuple(config.items())],
         **{f"p:{name}": value for name, value in config.items()}}
        for n, config in enumerate(landscape.configs) if tuple(config.items()) in landscape.medians
    ]  # fmt: skip
    return objective_sensitivity(pd.DataFrame(rows)).mean_abs


def agreement(found: pd.Series[float], true: pd.Series[float]) -> float:
    """Spearman's rank correlation; a parameter that an account does not know counts as 0."""
    return float(spearmanr(found.reindex(true.index).fillna(0.0), true).statistic)


def of_trials(run: Run, true: pd.Series[float]) -> float | None:
    try:
        return agreement(objective_sensitivity(frame_of(run)).mean_abs, true)
    except NotEnough:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report.sensitivity")
    parser.add_argument("--truth", type=Path, required=True, metavar="DIR")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    print(machine([f"{arguments.seeds} seed(s), {arguments.trials} trials each"]))
    print("| landscape | configurations that ran | model and residual | forest on the trials |")
    print("|---|---|---|---|")
    began, ours, theirs = time.process_time(), [], []
    for file, wanted in TABLES.items():
        table = read_table(arguments.truth / file)
        if table is None:
            parser.error(f"{arguments.truth / file}: no table of a known form")
        models = LeftOut(table)
        for landscape in filter(lambda x: chosen(x, wanted), landscapes(table)):
            true = truth(landscape)
            model = models.without(landscape.model)
            found, forests = [], []
            for seed in range(arguments.seeds):
                policy = policy_for(landscape, "meshtune", seed, model)
                run = play(landscape, policy, seed, 1, arguments.trials, None).run
                pricing = Pricing(landscape.space)
                pricing.learn_from(model)
                only = Candidates(landscape.space, only=landscape.configs)
                account = model_sensitivity(run, pricing, seed, only)
                found.append(agreement(account.found.mean_abs, true))
                forests.append(of_trials(run, true))
            known = [x for x in forests if x is not None]
            other = f"{statistics.median(known):.2f}" if known else "too few successes"
            least = f"{statistics.median(found):.2f} (least {min(found):.2f})"
            print(f"| {landscape.key} | {len(landscape.medians)} | {least} | {other} |", flush=True)
            ours.append(statistics.median(found))
            theirs += [statistics.median(known)] if known else []
    both = [f"{statistics.mean(x):.2f}" if x else "-" for x in (ours, theirs)]
    print(f"| mean | | {both[0]} | {both[1]} |")
    print(f"\n{time.process_time() - began:.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
