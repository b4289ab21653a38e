"""Useful share of long runs: the formula beside a recorded trace of failures, and drawn ones.

    python -m benchmarks.goodput --truth FOLDER

The trace is that of InfiniteHBD: 400 servers, 348 days. Its failures come in bursts; the formula
takes them for memoryless, at the trace's rate. Prints Markdown: formula and replay for each number
of nodes with two prices of a checkpoint; at the best interval and at fixed ones; and with a limited
number of spare nodes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from scipy.special import bdtr

from analysis.prediction.goodput import DAY_S, best_interval_s, useful_share
from benchmarks.goodput.trace import FaultTrace
from benchmarks.printing import machine

TRACE = "gpu_cluster_faults_infinitehbd.csv"
NODES, LARGE = (16, 64, 256, 400), 4000
COSTS = ((30.0, 300.0), (180.0, 900.0))  # seconds of a checkpoint, of a restart
SEEDS = range(3)
HOUR_S = 3600.0


def intervals(trace: FaultTrace) -> None:
    """Formula and replay, at the best interval and at usual ones."""
    print(
        "\n| nodes | checkpoint, restart | best interval | formula | replayed | difference, points "
        "| drawn failures | every 1 h: replayed | every 6 h: formula | replayed |"
    )
    print(f"{'|---' * 10}|")
    worst = 0.0
    for nodes in (*NODES, LARGE):
        drawn = [
            FaultTrace.drawn(max(nodes, trace.num_nodes), trace.days, trace.per_node_day,
                             trace.repair_days, seed) for seed in SEEDS
        ]  # fmt: skip
        for cost in COSTS:
            mtbf_s = DAY_S / (nodes * trace.per_node_day)
            best_s = float(best_interval_s(mtbf_s, cost[0]))
            told = 100 * float(useful_share(mtbf_s, best_s, *cost))
            replayed = 100 * trace.useful_share(nodes, best_s, *cost)
            worst = max(worst, abs(told - replayed)) if nodes in NODES else worst
            memoryless = [100 * each.useful_share(nodes, best_s, *cost) for each in drawn]
            hourly, late = (100 * trace.useful_share(nodes, n * HOUR_S, *cost) for n in (1, 6))
            cells = [f"{nodes:,}", f"{cost[0]:.0f} s, {cost[1]:.0f} s", f"{best_s / 60:.0f} min"]
            cells += [f"{told:.1f} %", f"{replayed:.1f} %", f"{told - replayed:+.1f}"]
            cells += [f"{sum(memoryless) / len(memoryless):.1f} %", f"{hourly:.1f} %"]
            cells += [f"{100 * float(useful_share(mtbf_s, 6 * HOUR_S, *cost)):.1f} %"]
            print(f"| {' | '.join([*cells, f'{late:.1f} %'])} |", flush=True)
    print(f"\nlargest difference of formula and replay on {NODES[0]} to {NODES[-1]} nodes, at the "
          f"best interval: {worst:.1f} points")  # fmt: skip


def with_spares(trace: FaultTrace) -> None:
    """A limited number of spare nodes; failed ones come back when the trace says.

    The formula's factor is the probability that no more nodes are under repair than there are
    spares, if each is for the same share of its time, independently: a binomial distribution.
    """
    print("\n| nodes | spares | formula | drawn failures | replayed |\n|---|---|---|---|---|")
    rates = trace.per_node_day, trace.repair_days
    out = 1 - 1 / (1 + rates[0] * rates[1])  # share of its time that a node is under repair
    drawn = FaultTrace.drawn(trace.num_nodes, trace.days, *rates)
    save_s, restart_s = COSTS[0]
    for nodes, some in ((64, (0, 2, 5, 15)), (340, (0, 8, 16, 60))):
        mtbf_s = DAY_S / (nodes * trace.per_node_day)
        best_s = float(best_interval_s(mtbf_s, save_s))
        share = float(useful_share(mtbf_s, best_s, save_s, restart_s))
        for spares in some:
            shares = [share * float(bdtr(spares, nodes + spares, out))] + [
                each.useful_share(nodes, best_s, save_s, restart_s, spares)
                for each in (drawn, trace)
            ]
            print(f"| {nodes} | {spares} | {' | '.join(f'{100 * s:.1f} %' for s in shares)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, required=True, help="folder with published tables")
    trace = FaultTrace.read(parser.parse_args().truth / TRACE)
    print(f"{len(trace.node)} failures of {trace.num_nodes} nodes in {trace.days:.0f} days: "
          f"{trace.per_node_day:.4f} per node and day; back after {trace.repair_days:.1f} days in "
          "the mean")  # fmt: skip
    begin_s = time.perf_counter()
    intervals(trace)
    with_spares(trace)
    print(f"\n{machine([f'{time.perf_counter() - begin_s:.1f} s'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
