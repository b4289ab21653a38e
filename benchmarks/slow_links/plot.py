"""One picture: step time over link speed, and what gas changes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.slow_links import paper
from benchmarks.slow_links.measure import Bench, Case, Plan

_COLOURS = {"ZeRO-3": "#7f7f7f", "ZeRO++": "#1f77b4", "ZeRO-topo": "#d62728"}


def draw(bench: Bench, plan: Plan, path: Path) -> None:
    """Write the picture of both curves; they must have been run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    rates = plan.over_rates()
    nodes = rates[0].num_nodes
    for scheme in plan.MAIN:
        mine = sorted((c for c in rates if c.scheme == scheme), key=lambda c: c.scarcity)
        left.plot(
            [case.scarcity for case in mine],
            [bench.samples[case].step_time_s / case.gas for case in mine],
            marker="o",
            color=_COLOURS[scheme],
            label=scheme,
        )
    estimates = [s.value for name, s in paper.scarcities().items() if name != "nominal"]
    left.axvspan(min(estimates), max(estimates), color="#d62728", alpha=0.08)
    left.text(
        (min(estimates) * max(estimates)) ** 0.5, 0.98, "Frontier, 384 GCDs\n(from the ratios)",
        transform=left.get_xaxis_transform(), ha="center", va="top", fontsize=8,
    )  # fmt: skip
    left.set_xscale("log", base=2)
    left.set_yscale("log", base=2)
    left.set_xlabel(
        "r: time to send the weights once over a link / own work on a micro-batch\n"
        "(below: the link in Mbit/s)"
    )
    left.set_ylabel("step time per micro-batch (s)")
    left.set_title(f"{nodes} nodes x 2 ranks, {plan.CURVE_GAS} micro-batches a step")
    marks = sorted(plan.curve)
    left.set_xticks(marks, [f"{r:.2f}\n{bench.rate(r):.0f}" for r in marks])
    left.yaxis.set_major_formatter("{x:g}")
    left.legend()

    places = range(len(plan.gas_curve))
    for offset, scheme in zip((-0.25, 0.0, 0.25), plan.MAIN, strict=True):
        cases = [Case(scheme, nodes, plan.scarcities[0], gas) for gas in plan.gas_curve]
        bars = right.bar(
            [place + offset for place in places],
            [bench.samples[case].step_time_s / case.gas for case in cases],
            width=0.25,
            color=_COLOURS[scheme],
            label=scheme,
        )
        right.bar_label(bars, fmt="%.2f", fontsize=8)
    right.set_xticks(list(places), [str(gas) for gas in plan.gas_curve])
    right.set_xlabel("micro-batches a step (gas)")
    right.set_ylabel("step time per micro-batch (s)")
    right.set_title(f"{nodes} nodes x 2 ranks, r = {plan.scarcities[0]:.2f}")
    figure.savefig(path, dpi=130)
    plt.close(figure)
