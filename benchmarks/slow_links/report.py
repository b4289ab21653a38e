"""The tables: ours beside the paper's."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from benchmarks.slow_links import paper
from benchmarks.slow_links.measure import Bench, Case, Plan, Samples
from benchmarks.slow_links.schemes import MODEL


def main_table(bench: Bench, cases: Sequence[Case]) -> str:
    """Step time with its spread, TFLOPS, bytes and CPU time of each case."""
    lines = [
        "| nodes x ranks | link (Mbit/s) | r | gas | placement | step (s), median | min..max "
        "| GFLOPS a rank | link bytes / weights, a micro-batch | CPU (s) |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        s = bench.samples[case]
        times = s.step_times_s
        volume = s.link_bytes_per_step / (2 * MODEL.num_parameters) / case.gas
        lines.append(
            f"| {case.num_nodes} x {case.ranks_per_node} | {s.rate_mbit_per_s:.1f} "
            f"| {case.scarcity:.2f} | {case.gas} | {case.scheme} | {s.step_time_s:.2f} "
            f"| {min(times):.2f}..{max(times):.2f} | {1e3 * s.tflops_per_rank:.2f} "
            f"| {volume:.2f} | {s.cpu_s_per_step:.3f} |"
        )
    return "\n".join(lines)


def ratio(bench: Bench, slow: Case, fast: Case) -> tuple[float, float, float]:
    """Median, least and greatest speed-up over the repeats that ran both."""
    pairs = zip(bench.samples[slow].runs, bench.samples[fast].runs, strict=True)
    ratios = [a.step_time_s / b.step_time_s for a, b in pairs]
    return statistics.median(ratios), min(ratios), max(ratios)


def paper_table(bench: Bench, plan: Plan) -> str:
    """The ratios that the papers report, on the largest cluster, for every r that was run."""
    nodes = max(plan.nodes)
    lines = ["| | r | ours, median | min..max | paper |", "|---|---|---|---|---|"]

    def row(name: str, slow: Case, fast: Case, published: str) -> None:
        if slow in bench.samples and fast in bench.samples:
            middle, low, high = ratio(bench, slow, fast)
            lines.append(
                f"| {name} | {slow.scarcity:.2f} | {middle:.2f} | {low:.2f}..{high:.2f} "
                f"| {published} |"
            )

    for r in plan.scarcities:
        zero3, zero_pp, topo = (Case(s, nodes, r, plan.gas) for s in plan.MAIN)
        row("ZeRO++ over ZeRO-3", zero3, zero_pp, f"{paper.ZERO_PP_OVER_ZERO3:.3f}")
        row("ZeRO-topo over ZeRO++", zero_pp, topo, f"{paper.ZERO_TOPO_OVER_ZERO_PP:.3f}")
        row("ZeRO-topo over ZeRO-3", zero3, topo, f"{paper.ZERO_TOPO_OVER_ZERO3:.3f}")
    first = plan.scarcities[0]
    kept_pp, kept_hpz = (Case(s, nodes, first, plan.gas) for s in plan.KEPT)
    qgz, hpz = (Case(s, nodes, first, plan.gas) for s in plan.HPZ)
    topo = Case("ZeRO-topo", nodes, first, plan.gas)
    dai = paper.DAI_HPZ_OVER_QGZ.values()
    row("ZeRO-topo over ZeRO++ with its copy kept for the step", kept_pp, topo, "-")
    row("qgZ + hpZ over qgZ", qgz, hpz, f"{min(dai):.2f} to {max(dai):.2f}")
    row("qgZ + hpZ with its copy kept over qgZ", qgz, kept_hpz, "-")
    return "\n".join(lines)


def efficiency_table(bench: Bench, plan: Plan) -> str:
    """Weak scaling: speed of a rank on the largest cluster over that on the smallest."""
    few, many = min(plan.nodes), max(plan.nodes)
    lines = [
        f"| weak scaling, {few} to {many} nodes | ours, median | min..max | paper |",
        "|---|---|---|---|",
    ]
    for scheme in plan.MAIN:
        small, large = (Case(scheme, n, plan.scarcities[0], plan.gas) for n in (few, many))
        middle, low, high = ratio(bench, small, large)
        published = f"{paper.SCALING_EFFICIENCY:.2f}" if scheme == "ZeRO-topo" else "-"
        lines.append(f"| {scheme} | {middle:.3f} | {low:.3f}..{high:.3f} | {published} |")
    return "\n".join(lines)


def curve_table(bench: Bench, plan: Plan, cases: Sequence[Case]) -> str:
    """Speed-ups over link speeds or over gas: one row for each point."""
    points = dict.fromkeys((case.num_nodes, case.scarcity, case.gas) for case in cases)
    lines = [
        "| nodes | r | link (Mbit/s) | gas | ZeRO++ over ZeRO-3 | ZeRO-topo over ZeRO++ "
        "| ZeRO-topo over ZeRO-3 |",
        "|---|---|---|---|---|---|---|",
    ]
    for nodes, r, gas in points:
        times = [bench.samples[Case(s, nodes, r, gas)].step_time_s for s in plan.MAIN]
        zero3, zero_pp, topo = times
        lines.append(
            f"| {nodes} | {r:.2f} | {bench.rate(r):.1f} | {gas} | {zero3 / zero_pp:.2f} "
            f"| {zero_pp / topo:.2f} | {zero3 / topo:.2f} |"
        )
    return "\n".join(lines)


def break_even(bench: Bench, plan: Plan, gain: float = 1.05) -> str:
    """Below which r ZeRO-topo is less than ``gain`` times as fast as ZeRO++, on the curve."""
    cases = plan.over_rates()
    points: list[tuple[float, float]] = []
    for r in sorted(plan.curve):
        _, zero_pp, topo = (_find(bench, cases, s, r).step_time_s for s in plan.MAIN)
        points.append((r, zero_pp / topo))
    if points[0][1] >= gain:
        return f"ZeRO-topo gains at least {gain - 1:.0%} over ZeRO++ on every link that was tried"
    for (low, below), (high, above) in itertools.pairwise(points):
        if below < gain <= above:
            r = low + (high - low) * (gain - below) / (above - below)
            return (
                f"ZeRO-topo gains less than {gain - 1:.0%} over ZeRO++ for r below {r:.2f} "
                f"(links faster than {bench.rate(r):.0f} Mbit/s here)"
            )
    return f"ZeRO-topo never gains {gain - 1:.0%} over ZeRO++ on the links that were tried"


def _find(bench: Bench, cases: Sequence[Case], scheme: str, r: float) -> Samples:
    (case,) = (c for c in cases if c.scheme == scheme and c.scarcity == r)
    return bench.samples[case]
