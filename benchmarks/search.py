"""How soon searches come near the best: ``python -m benchmarks.search [--truth DIR] [--quick]``.

Every policy is replayed on the same landscapes with the same seeds, one trial at a time and in
batches of eight. The cost model's constants are fitted without the landscape's model; what the
search loses to a cost model that is wrong is measured on the same landscapes.

Playing all peers takes an hour of CPU. ``--keep`` takes policies that have not changed since from
the file that ``--json`` wrote.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.cost.model import CostModel, Evidence
from analysis.cost.profiles import PROFILES
from analysis.sweeps.table import Table
from analysis.sweeps.tables import read
from benchmarks.cost_model.report import machine
from benchmarks.cost_model.transfer import parts_of, transferred
from benchmarks.unrecorded import TOLD, at_scale, simulated
from benchmarks.wrong_models import inverted, shuffled, wrong
from workflows.landscapes import Landscape, landscapes
from workflows.proposer import Policy
from workflows.replay import NEAR, Played, ReplayPolicy, chooser, play, summary

REPLAYED = ("sweep", "vtrain")  # forms of tables in which configurations compete
PEERS: tuple[ReplayPolicy, ...] = ("cost-model", "deephyper", "optuna", "random")
UNSEEN = "meshtune, framework unseen"
SIMULATED = ("gpt_175b_frontier_table4", "gpt_175b_frontier")
QUICK_LANDSCAPES = 7  # of a table


@dataclass
class LeftOut:
    """Cost models of a table, each fitted without some of its models."""

    table: Table
    fitted: dict[frozenset[str], CostModel] = field(default_factory=dict)

    def without(self, *models: str) -> CostModel:
        """Fitted to the rows of all other models; with none, the constants' defaults."""
        held = frozenset(models)
        if held not in self.fitted:
            table, rest = self.table, self.table[~np.isin(self.table.model, models)]
            model = CostModel(
                table.machines[str(table.machine[0])], PROFILES[str(table.profile[0])]
            )
            evidence = Evidence(rest.jobs, rest.step_time_s, rest.peak_bytes, rest.failed)
            self.fitted[held] = model.calibrated(evidence) if len(rest) else model
        return self.fitted[held]


Game = Callable[[Landscape, int], Played]
_GAMES: list[Callable[[], list[Played]]] = []  # inherited: a space's rules cannot be sent


def _play(index: int) -> list[Played]:
    return _GAMES[index]()


def every_game(recorded: Sequence[Landscape], game: Game, seeds: int) -> dict[str, Any]:
    """Figures of a game on every landscape with every seed, on all cores."""
    _GAMES[:] = [partial(_all_seeds, game, landscape, seeds) for landscape in recorded]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        played = pool.map(_play, range(len(recorded)), chunksize=1)
    keys = [landscape.key for landscape in recorded]
    return summary(dict(zip(keys, played, strict=True)), {x.key: len(x.configs) for x in recorded})


def _all_seeds(game: Game, landscape: Landscape, seeds: int) -> list[Played]:
    return [game(landscape, seed) for seed in range(seeds)]


def replayed(
    recorded: Sequence[Landscape],
    models: LeftOut | Unseen,
    policy: ReplayPolicy,
    seeds: int,
    parallel: int = 1,
) -> dict[str, Any]:
    """Figures of a policy; see ``workflows.replay.summary``."""

    def game(landscape: Landscape, seed: int) -> Played:
        guided = policy in ("meshtune", "cost-model")
        model = models.without(landscape.model) if guided else None
        return play(landscape, chooser(landscape, policy, seed, model), seed, parallel)

    return every_game(recorded, game, seeds)


@dataclass(frozen=True)
class Unseen:
    """The cost model of a table's framework if no other table were of it, nor of its models.

    So a search starts with a framework of its own: with what is known of the GPU, and of others.
    """

    table: Table
    model: CostModel

    @classmethod
    def among(cls, table: Table, tables: Sequence[Table]) -> Unseen:
        machine = table.machines[str(table.machine[0])]
        habits = PROFILES[str(table.profile[0])]
        others = [t[~np.isin(t.model, table.model)] for t in tables if t.name != table.name]
        parts = [part for part in parts_of(others) if part.profile[0] != habits.name]
        return cls(table, CostModel(machine, habits, transferred(parts, machine, habits)))

    def without(self, _: str) -> CostModel:
        return self.model


def table_figures(
    table: Table, tables: Sequence[Table], seeds: int, quick: bool, kept: Mapping[str, Any]
) -> dict[str, Any]:
    """All policies on one table, but for those kept.

    Args:
        table: that is played.
        tables: all there are.
        seeds: how many.
        quick: a few landscapes only.
        kept: figures of peers that stand.
    """
    recorded = list(landscapes(table))
    if quick:
        recorded = recorded[:: max(1, len(recorded) // QUICK_LANDSCAPES)]
    models = LeftOut(table)
    for landscape in recorded:
        models.without(landscape.model)  # once, not in every process
    figures: dict[str, dict[str, Any]] = {
        "meshtune": replayed(recorded, models, "meshtune", seeds),
        "meshtune, 8 at a time": replayed(recorded, models, "meshtune", seeds, parallel=8),
        UNSEEN: replayed(recorded, Unseen.among(table, tables), "meshtune", seeds),
        **{p: kept.get(p) or replayed(recorded, models, p, seeds) for p in PEERS},
    }
    if table.failed.any():  # a table of failures is the harder one to be wrong on
        figures |= {
            name: against_wrong(recorded, models, seeds, permutation, figures["deephyper"])
            for name, permutation in (("shuffled", shuffled), ("inverted", inverted))
        }
    return figures


def against_wrong(
    recorded: Sequence[Landscape],
    models: LeftOut,
    seeds: int,
    permutation: Callable[..., Any],
    plain: Mapping[str, Any],
) -> dict[str, Any]:
    """The search with a cost model that is wrong; with its ratio to plain DeepHyper."""

    def game(landscape: Landscape, seed: int) -> Played:
        model = wrong(landscape, permutation, seed, models.without(landscape.model))
        return play(landscape, chooser(landscape, "meshtune", seed, model), seed, until=NEAR)

    figures = every_game(recorded, game, seeds)
    figures["overall"]["ratio_to_deephyper"] = statistics.median(
        own["trials_to_5pct"] / other["trials_to_5pct"]
        for own, other in zip(figures["landscapes"], plain["landscapes"], strict=True)
    )
    return figures


# ---- printing ----


def goal_lines(name: str, figures: Mapping[str, Any]) -> list[str]:
    """A table's figures beside the goals."""
    own, batch = figures["meshtune"]["overall"], figures["meshtune, 8 at a time"]["overall"]
    to5, to1 = own["trials_to_5pct"], own["trials_to_1pct"]
    count, first = own["landscapes"], batch["landscapes_with_5pct_in_first_8"]
    lines = [
        _line(f"{name}: to 5 %, geometric mean", 1.5, to5["geometric_mean"]),
        _line(f"{name}: to 5 %, worst landscape", 6, to5["worst"]),
        _line(f"{name}: to 1 %, geometric mean", 4, to1["geometric_mean"]),
        _line(f"{name}: landscapes whose first batch of 8 misses 5 %", 0, count - first),
        _line(f"{name}: failed of the first 16, %", 8, 100 * own["failed_share"]),
    ]
    for peer in ("deephyper", "optuna"):
        other = figures[peer]["overall"]["trials_to_5pct"]["geometric_mean"]
        ratio = other / to5["geometric_mean"]
        lines.append(_line(f"{name}: times fewer trials than {peer}", 8, ratio, at_least=True))
    for kind in ("shuffled", "inverted"):
        if kind in figures:
            ratio = figures[kind]["overall"]["ratio_to_deephyper"]
            lines.append(_line(f"{name}: {kind} cost model over plain DeepHyper", 1.2, ratio))
    return lines


def _line(what: str, goal: float, measured: float, at_least: bool = False) -> str:
    reached = measured >= goal if at_least else measured <= goal
    sign = ">=" if at_least else "<="
    return f"| {what} | {sign} {goal:g} | {measured:.3g} | {'yes' if reached else 'MISSED'} |"


def policy_lines(figures: Mapping[str, Any]) -> list[str]:
    """One row a policy."""
    lines = [
        "| policy | to 5 %: geometric mean / worst | to 1 % | best of 8 | of 16 | failed |",
        "|---|---|---|---|---|---|",
    ]
    for name, figure in figures.items():
        o = figure["overall"]
        to5, to1 = o["trials_to_5pct"], o["trials_to_1pct"]
        lines.append(
            f"| {name} | {to5['geometric_mean']:.2f} / {to5['worst']:.0f} "
            f"| {to1['geometric_mean']:.2f} / {to1['worst']:.0f} | {o['best_of_8']:.3f} "
            f"| {o['best_of_16']:.3f} | {100 * o['failed_share']:.1f} % |"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--truth", type=Path, default=Path("../shared/truth"), metavar="DIR")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--quick", action="store_true", help="one seed, a few landscapes a table")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--keep", nargs="+", choices=PEERS, default=[], metavar="POLICY")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    seeds = 1 if arguments.quick else arguments.seeds
    print(machine([f"{seeds} seed(s)"]), flush=True)
    earlier: dict[str, Any] = {}
    if arguments.keep:
        if not arguments.json or not arguments.json.is_file():
            parser.error("--keep takes figures from the file of --json; name one that exists")
        earlier = json.loads(arguments.json.read_text())
        if (earlier["seeds"], earlier["quick"]) != (seeds, arguments.quick):
            parser.error(f"{arguments.json} has figures of other seeds or landscapes")
        print(f"kept from {arguments.json}: {', '.join(arguments.keep)}", flush=True)
    everything: dict[str, Any] = {"seeds": seeds, "quick": arguments.quick, "tables": {}}
    goals = []
    read_all = [read(path) for path in sorted(arguments.truth.glob("*.csv"))]
    tables = [table for table in read_all if table is not None and len(table)]
    for table in tables:
        if table.kind not in REPLAYED:
            continue
        known = earlier.get("tables", {}).get(table.name, {})
        kept = {name: known[name] for name in arguments.keep if name in known}
        figures = table_figures(table, tables, seeds, arguments.quick, kept)
        everything["tables"][table.name] = figures
        count = figures["meshtune"]["overall"]["landscapes"]
        print(
            "\n".join([f"\n{table.name}: {count} landscapes", *policy_lines(figures)]), flush=True
        )
        goals += goal_lines(table.name, figures)
        if arguments.json:  # so far, should it be interrupted
            arguments.json.write_text(json.dumps(everything, indent=2))
    if not everything["tables"]:
        parser.error(f"--truth {arguments.truth}: no table of measured configurations there")
    for name in SIMULATED:
        counts = {
            policy: [simulated(name, seed, policy) for seed in range(seeds)]
            for policy in ("meshtune", "deephyper")
        }
        everything[name] = counts
        print(f"\n{name}, simulated, other constants: trials to within 5 % (None: over 60)")
        print("\n".join(f"{policy}: {found}" for policy, found in counts.items()), flush=True)
        goals.append(
            _line(f"{name}: to 5 %, worst seed", 8, max(n or 61 for n in counts["meshtune"]))
        )
    # A process of its own, whose peak of memory is the proposer's alone.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        scaled: tuple[tuple[Policy, str], ...] = (
            ("meshtune", "meshtune"),
            ("deephyper", "its fallback"),
        )
        for policy, ask in scaled:
            cpu_s, peak_bytes = pool.apply(partial(at_scale, policy))
            everything[f"at_scale_{policy}"] = {"cpu_s": cpu_s, "peak_bytes": peak_bytes}
            goals.append(_line(f"{ask}: CPU s a proposal, {TOLD} trials told", 0.5, cpu_s))
            goals.append(_line(f"{ask}: peak memory, GB", 1, peak_bytes / 1e9))
    print("\n| figure | goal | measured | reached |\n|---|---|---|---|")
    print("\n".join(goals))
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
