"""Trials until searches come near the best: ``python -m benchmarks.search --truth DIR [--quick]``.

Every policy is replayed on the same landscapes with the same seeds, one trial at a time and in
batches of eight. The cost model's constants are fitted without the landscape's model. The loss of
the search with a wrong cost model is measured on the same landscapes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from analysis.sweeps.record import Table
from benchmarks.printing import machine
from benchmarks.published.read import read_table
from benchmarks.search.games import (
    REPLAYED,
    LeftOut,
    Unseen,
    against_wrong,
    by_stop_rule,
    forgotten,
    replayed,
)
from benchmarks.search.unrecorded import TOLD, at_scale, simulated
from benchmarks.search.wrong_models import inverted, shuffled
from workflows.replay.landscape import Landscape
from workflows.replay.landscapes import landscapes
from workflows.replay.play import NEARER

PEERS: tuple[str, ...] = ("cost-model", "deephyper", "optuna", "random")
UNSEEN = "meshtune, framework unseen"
FORGOTTEN = "meshtune, framework without a record"
SIMULATED = ("gpt_175b_frontier_table4", "gpt_175b_frontier")
QUICK_LANDSCAPES = 7  # of a table


def table_figures(
    recorded: Sequence[Landscape], models: LeftOut, tables: Sequence[Table], seeds: int
) -> dict[str, Any]:
    """All policies on the landscapes of one table.

    Args:
        recorded: the landscapes to play.
        models: cost models of that table.
        tables: all tables, for a cost model without this one's framework.
        seeds: number of seeds.
    """
    figures: dict[str, dict[str, Any]] = {
        "meshtune": replayed(recorded, models, "meshtune", seeds),
        "meshtune, 8 at a time": replayed(recorded, models, "meshtune", seeds, parallel=8),
        UNSEEN: replayed(recorded, Unseen.among(models.table, tables), "meshtune", seeds),
        **{p: replayed(recorded, models, p, seeds) for p in PEERS},
    }
    with forgotten(str(models.table.framework[0])):
        unseen = Unseen.among(models.table, tables)
        figures[FORGOTTEN] = replayed(recorded, unseen, "meshtune", seeds)
    if models.table.failed.any():  # a wrong model costs most where configurations fail
        figures |= {
            name: against_wrong(recorded, models, seeds, permutation, figures["deephyper"])
            for name, permutation in (("shuffled", shuffled), ("inverted", inverted))
        }
    return figures


# ---- printing ----


def stop_line(ends: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The stop rule's result on all landscapes of a table."""
    trials = [n for end in ends.values() for n in end["trials"]]
    reached = [share for end in ends.values() for share in end["reached"]]
    near = statistics.mean(share >= 1 - NEARER for share in reached)
    return (
        f"ended by the stop rule: after {statistics.median(trials):g} trials in the median "
        f"({min(trials):g} to {max(trials):g}), within 1 % of the best in {100 * near:.3g} % of "
        f"searches, at {100 * min(reached):.3g} % of it at worst"
    )


def goal_lines(name: str, figures: Mapping[str, Any]) -> list[str]:
    """A table's figures next to the goals."""
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
    """A row for each policy."""
    lines = [
        "| policy | to 5 %: geometric mean / worst | to 1 % | best of 8 | of 16 | failed "
        "| in the interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figure in figures.items():
        o = figure["overall"]
        to5, to1 = o["trials_to_5pct"], o["trials_to_1pct"]
        inside = "-" if o["in_interval"] is None else f"{100 * o['in_interval']:.0f} %"
        lines.append(
            f"| {name} | {to5['geometric_mean']:.2f} / {to5['worst']:.0f} "
            f"| {to1['geometric_mean']:.2f} / {to1['worst']:.0f} | {o['best_of_8']:.3f} "
            f"| {o['best_of_16']:.3f} | {100 * o['failed_share']:.1f} % | {inside} |"
        )
    return lines


def _replayed(arguments: argparse.Namespace, seeds: int, everything: dict[str, Any]) -> list[str]:
    """Replay all recorded landscapes; returns the lines of the goals."""
    goals: list[str] = []
    read_all = [read_table(path) for path in sorted(arguments.truth.glob("*.csv"))]
    tables = [table for table in read_all if table is not None and len(table)]
    for table in tables:
        if table.form not in REPLAYED:
            continue
        recorded, models = list(landscapes(table)), LeftOut(table)
        if arguments.quick:
            recorded = recorded[:: max(1, len(recorded) // QUICK_LANDSCAPES)]
        for landscape in recorded:
            models.without(landscape.model)  # once, not in every process
        figures = table_figures(recorded, models, tables, seeds)
        ends = by_stop_rule(recorded, models, seeds)
        everything["tables"][table.name], everything["stop_rule"][table.name] = figures, ends
        lines = [f"\n{table.name}: {len(recorded)} landscapes", *policy_lines(figures)]
        print("\n".join([*lines, "", stop_line(ends)]), flush=True)
        goals += goal_lines(table.name, figures)
        if arguments.json:  # so far, should it be interrupted
            arguments.json.write_text(json.dumps(everything, indent=2))
    return goals


def _simulated(seeds: int, everything: dict[str, Any]) -> list[str]:
    """Search on a simulated Frontier; returns the lines of the goals."""
    goals = []
    for name in SIMULATED:
        counts = {
            policy: [simulated(name, seed, policy) for seed in range(seeds)]
            for policy in ("meshtune", "deephyper")
        }
        everything[name] = counts
        print(f"\n{name}, simulated, other constants: trials to within 5 % (None: over 60)")
        print("\n".join(f"{policy}: {found}" for policy, found in counts.items()), flush=True)
        worst = max(n or 61 for n in counts["meshtune"])
        goals.append(_line(f"{name}: to 5 %, worst seed", 8, worst))
    return goals


def _scaled(everything: dict[str, Any]) -> list[str]:
    """Measure a proposal's time and memory after many trials; returns the lines of the goals."""
    goals = []
    # A process of its own, whose peak of memory is the policy's alone.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for policy, asked in (("meshtune", "meshtune"), ("deephyper", "its fallback")):
            cpu_s, peak_bytes = pool.apply(partial(at_scale, policy))
            everything[f"at_scale_{policy}"] = {"cpu_s": cpu_s, "peak_bytes": peak_bytes}
            goals.append(_line(f"{asked}: CPU s per proposal, {TOLD} trials told", 0.5, cpu_s))
            goals.append(_line(f"{asked}: peak memory, GB", 1, peak_bytes / 1e9))
    return goals


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--truth", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--quick", action="store_true", help="one seed, a few landscapes a table")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    seeds = 1 if arguments.quick else arguments.seeds
    print(machine([f"{seeds} seed(s)"]), flush=True)
    everything: dict[str, Any] = {
        "seeds": seeds,
        "quick": arguments.quick,
        "tables": {},
        "stop_rule": {},
    }
    goals = _replayed(arguments, seeds, everything)
    if not goals:
        parser.error(f"--truth {arguments.truth}: no table of measured configurations there")
    goals += _simulated(seeds, everything) + _scaled(everything)
    print("\n| figure | goal | measured | reached |\n|---|---|---|---|")
    print("\n".join(goals))
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
