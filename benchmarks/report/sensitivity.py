"""Agreement of sensitivity analyses of a few trials with that of a whole landscape.

    python -m benchmarks.report.sensitivity --truth DIR [--trials 8] [--seeds 3] [--explore 0 0.25]

Six recorded landscapes are searched for so many trials each, with a cost model whose constants are
fitted without the landscape's model. Parameters are ranked by mean |SHAP| of a forest on every
recorded configuration that ran: the truth. It is compared with the ranking by the calibrated cost
model and its residual over the landscape's configurations, as the report's first view has it, and
with that by a forest on the trials alone.

Parameters may be nearly equal: forests on half of the recorded rows show how certain the
truth's own order is. A pair of parameters is decided if all of those forests order it alike; the
page decides one if the whiskers of the two do not overlap. One core, a few minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pandas as pd
from scipy.stats import spearmanr

from analysis import CostModel, NotEnough, Pricing, Run, objective_sensitivity
from analysis.report.outlook import Outlook
from analysis.report.sensitivity import ModelSensitivity, model_sensitivity
from analysis.run.frame import frame_of
from benchmarks.printing import machine
from benchmarks.published.read import read_table
from benchmarks.search.games import LeftOut, policy_for
from benchmarks.search.wrong_models import start_from
from search_spaces import Candidates
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import landscapes
from workflows.replay.play import play

TABLES = {
    "h100_nanotron_sweep.csv": ("1B 4 ", "1B 16 ", "1B 32 ", "8B 8 ", "8B 32 "),
    "a100_vtrain_multi_node.csv": ("48x8192 ",),
}
"""By table: the model and the number of nodes (or GPUs) that a landscape's key tells."""

HALVES = 20  # forests on half of a landscape


def chosen(landscape: Landscape, wanted: Sequence[str]) -> bool:
    words = landscape.key.split()
    short = " ".join(w for w in words if "H100" not in w) + " "
    return any(short.startswith(want) for want in wanted)


def everything(landscape: Landscape) -> pd.DataFrame:
    """All that ran, as ``load`` gives it."""
    rows = [
        {"trial": n, "kind": "ok", "objective": landscape.medians[tuple(config.items())],
         **{f"p:{name}": value for name, value in config.items()}}
        for n, config in enumerate(landscape.configs) if tuple(config.items()) in landscape.medians
    ]  # fmt: skip
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Truth:
    """Sensitivity of a whole landscape to its parameters.

    Attributes:
        mean_abs: mean |SHAP|.
        halves: mean rank correlation of that with forests on half of what ran.
        decided: pairs of parameters, the greater first, that all of these order alike.
    """

    mean_abs: pd.Series[float]
    halves: float
    decided: tuple[tuple[str, str], ...]


def truth(frame: pd.DataFrame) -> Truth:
    mean_abs = objective_sensitivity(frame).mean_abs
    halves = [
        objective_sensitivity(frame.sample(frac=0.5, random_state=seed), seed).mean_abs
        for seed in range(HALVES)
    ]
    decided = tuple(
        (str(one), str(other))
        for one, other in combinations(mean_abs.index, 2)
        if all(half.get(one, 0.0) > half.get(other, 0.0) for half in halves)
    )
    return Truth(mean_abs, statistics.mean(agreement(x, mean_abs) for x in halves), decided)


@dataclass
class Pairs:
    """Pairs of parameters: how many are ordered as the landscape has them, of how many."""

    right: int = 0
    of: int = 0

    def count(self, right: bool) -> None:
        self.right, self.of = self.right + right, self.of + 1

    def __str__(self) -> str:
        return f"{self.right} of {self.of}"


def decided_right(account: ModelSensitivity, true: Truth, decided: Pairs, claimed: Pairs) -> None:
    """Count the pairs that the landscape decides, and those of them that the page claims to."""
    means, edges = account.found.mean_abs, account.found.interval
    for one, other in true.decided:
        right = means.get(one, 0.0) > means.get(other, 0.0)
        decided.count(right)
        if {one, other} <= set(edges.index):
            low, high = edges["low"], edges["high"]
            if low[one] > high[other] or low[other] > high[one]:
                claimed.count(right)


def exploring(landscape: Landscape, share: float) -> Landscape:
    """The same, of whose trials a share explores."""
    space = landscape.space
    budget = space.budget.model_copy(update={"explore": share})
    return replace(landscape, space=replace(space, budget=budget))


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
    parser.add_argument("--explore", type=float, nargs="+", default=[0.0], metavar="SHARE")
    parser.add_argument("--verbose", action="store_true", help="print every parameter's figures")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    print(machine([f"{arguments.seeds} seed(s), {arguments.trials} trials each"]))
    shares = arguments.explore
    columns = ["landscape", "ran", "halves of it"]
    columns += ["model and residual" if not x else f"explore {x:g}" for x in shares]
    print("|".join(["", *(f" {x} " for x in [*columns, "forest on the trials"]), ""]))
    print("|" + "---|" * (len(columns) + 1))
    began = time.process_time()
    ours: dict[float, list[float]] = {share: [] for share in shares}
    decided, claimed = ({share: Pairs() for share in shares} for _ in range(2))
    halves: list[float] = []
    theirs: list[float] = []
    for file, wanted in TABLES.items():
        table = read_table(arguments.truth / file)
        if table is None:
            parser.error(f"{arguments.truth / file}: no table of a known form")
        models = LeftOut(table)
        for landscape in filter(lambda x: chosen(x, wanted), landscapes(table)):
            frame = everything(landscape)
            true, model = truth(frame), models.without(landscape.model)
            halves.append(true.halves)
            cells = [landscape.key, str(len(frame)), f"{true.halves:.2f}"]
            forests: list[float | None] = []
            for share in shares:
                found = []
                for seed in range(arguments.seeds):
                    account, run = searched(exploring(landscape, share), model, seed, arguments)
                    found.append(agreement(account.found.mean_abs, true.mean_abs))
                    decided_right(account, true, decided[share], claimed[share])
                    if arguments.verbose:
                        print_agreement(account, true.mean_abs)
                    if share == shares[0]:
                        forests.append(of_trials(run, true.mean_abs))
                ours[share].append(statistics.median(found))
                cells.append(f"{statistics.median(found):.2f} (least {min(found):.2f})")
            known = [x for x in forests if x is not None]
            cells.append(f"{statistics.median(known):.2f}" if known else "too few successes")
            theirs += [statistics.median(known)] if known else []
            print("|".join(["", *(f" {x} " for x in cells), ""]), flush=True)
    means = [statistics.mean(x) if x else float("nan") for x in (*ours.values(), theirs)]
    print(f"| mean | | {statistics.mean(halves):.2f} |" + "".join(f" {x:.2f} |" for x in means))
    for name, pairs in (("pairs that it decides", decided), ("that the page decides", claimed)):
        print(f"| {name} | | |" + "".join(f" {pairs[x]} |" for x in shares) + " |")
    print(f"\n{time.process_time() - began:.0f} s of CPU")
    return 0


def searched(
    landscape: Landscape, model: CostModel, seed: int, arguments: argparse.Namespace
) -> tuple[ModelSensitivity, Run]:
    """The account of the landscape's configurations after a search, and that search."""
    policy = policy_for(landscape, "meshtune", seed, model)
    run = play(landscape, policy, seed, 1, arguments.trials, None).run
    pricing = Pricing(landscape.space)
    start_from(pricing, model)
    only = Candidates(landscape.space, only=landscape.configs)
    return model_sensitivity(Outlook(run, pricing, seed, only), seed), run


def print_agreement(account: ModelSensitivity, true: pd.Series[float]) -> None:
    """Each parameter's mean |SHAP|, its interval, and the truth."""
    for name, mean in true.items():
        own, edges = account.found.mean_abs.get(name, 0.0), account.found.interval
        low, high = edges.loc[name] if name in edges.index else (0.0, 0.0)
        print(f"    {name}: {own:.0f} ({low:.0f} to {high:.0f}), true {mean:.0f}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
