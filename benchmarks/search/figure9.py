"""Section IV of Dash et al. 2023 on a simulated Frontier: ``python -m benchmarks.search.figure9``.

Table IV's space is searched on 128 nodes for an hour of virtual time, by DeepHyper as in the paper,
at random, and by the cost model, whose constants are not the simulated machine's. Draws
``docs/images/figure9.png`` from the first seed, after the paper's Figure 9, and prints all seeds.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from analysis.report.outcomes import trajectory
from analysis.run.fold import Run
from analysis.run.trial import COMPLETED
from benchmarks.printing import machine, spread
from benchmarks.search.simulated import simulated_driver
from search_spaces import load_space
from workflows.optimizer.registry import make_policy
from workflows.search.budget import Budget

BLUE, DARK, RED, LIGHT = "#0072b2", "#1c2430", "#d55e00", "#dfe3e8"  # the page's
DPI = 133
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "figure9.png"
TABLE_4 = "gpt_175b_frontier_table4"
CLUSTER = "nodes=128,model_error=1"
HOUR_S = 3600.0
POLICIES: dict[str, str] = {"deephyper": "DeepHyper", "random": "random", "meshtune": "meshtune"}


def simulate(name: str, policy: str, seed: int, budget: Budget, options: str = CLUSTER) -> Run:
    """A whole search on a simulated cluster, without a report.

    Args:
        name: of a shipped space.
        policy: chooses the trials.
        seed: of the cluster, of the model's error and of the policy.
        budget: limit at which the search ends.
        options: of the cluster; see ``docs/guide/simulate.md``.
    """
    space = load_space(name)
    chosen = make_policy(space, seed, policy)
    with simulated_driver(space, options, chosen, budget, seed) as driver:
        driver.run()
        return driver.state


def course(run: Run) -> dict[str, float]:
    """Trials, shares of failures in the first and last third of an hour, and best objectives."""
    frame = trajectory(run)
    third = (frame["search_s"] // (HOUR_S / 3)).clip(upper=2)
    failed = (frame["kind"] != "ok").groupby(third).mean()
    successes = frame["objective"].dropna()
    return {
        "trials": len(frame),
        "failed_first_third": float(failed.get(0, 0.0)),
        "failed_last_third": float(failed.get(2, 0.0)),
        "first_successes": float(successes.head(3).max()),
        "best": float(successes.max()),
    }


def failure_share(kinds: pd.Series[str]) -> pd.Series[float]:
    """Share of failures among the latest completed trials: a sixth of all, from 5 to 20.

    Trials that did not complete, for example on a lost node, do not count.
    """
    completed = kinds.isin(COMPLETED)
    failed = (kinds != "ok")[completed].astype(float)
    share = failed.rolling(min(20, max(5, len(failed) // 6)), min_periods=1).mean()
    return share.reindex(kinds.index).ffill()


def picture(runs: Mapping[str, Run]) -> Figure:
    """A column for every policy: trials and the best so far; below, the share of failures."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    rows = figure.subplots(2, len(runs), sharex=True, sharey="row", height_ratios=(2.4, 1))
    for column, (policy, run) in enumerate(runs.items()):
        frame = trajectory(run)
        _draw(rows[0, column], rows[1, column], frame)
        ended = f"{len(frame)} trials, {(frame['kind'] != 'ok').mean():.0%} failed"
        rows[0, column].set_title(f"{POLICIES[policy]}: {ended}", fontsize=10)
        rows[1, column].set_xlabel("minutes")
    rows[0, 0].set_ylabel("TFLOP/s per GPU")
    rows[1, 0].set_ylabel("failed of\nthe latest")
    rows[0, 0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure


def _draw(top: Axes, bottom: Axes, frame: pd.DataFrame) -> None:
    minutes, failed = frame["search_s"] / 60, frame["kind"] != "ok"
    zeros = [0.0] * int(failed.sum())
    top.scatter(minutes, frame["objective"], s=12, color=BLUE, alpha=0.8, linewidth=0)
    top.scatter(
        minutes[failed], zeros, s=16, marker="v", color=RED, alpha=0.35, linewidth=0, label="failed"
    )
    top.step(minutes, frame["best"], where="post", color=DARK, linewidth=1.5, label="best so far")
    share = failure_share(frame["kind"])
    bottom.step(minutes, share, where="post", color=RED, linewidth=1.2)
    bottom.fill_between(minutes, 0, share, step="post", color=RED, alpha=0.15, linewidth=0)
    bottom.set_ylim(0, 1.05)
    bottom.set_xlim(0, HOUR_S / 60)
    bottom.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color=LIGHT, linewidth=0.5)
        axes.set_axisbelow(True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.figure9", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--picture", type=Path, default=PICTURE, metavar="FILE")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    print(machine([f"{arguments.seeds} seeds, median (least-most)"]))
    print("\n| | trials | failed, minutes 0-20 | 40-60 | best, TFLOP/s |\n|---|---|---|---|---|")
    drawn: dict[str, Run] = {}
    for policy, title in POLICIES.items():
        budget = Budget(wall_time_s=HOUR_S)
        runs = [simulate(TABLE_4, policy, seed, budget) for seed in range(arguments.seeds)]
        drawn[policy] = runs[0]
        courses = [course(run) for run in runs]
        cells = [spread([c[key] for c in courses], *how) for key, how in _COLUMNS.items()]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)
    picture(drawn).savefig(arguments.picture, dpi=DPI)
    return 0


_COLUMNS: dict[str, tuple[str, float]] = {  # unit and scale
    "trials": ("", 1.0),
    "failed_first_third": (" %", 100.0),
    "failed_last_third": (" %", 100.0),
    "best": ("", 1.0),
}


if __name__ == "__main__":
    raise SystemExit(main())
