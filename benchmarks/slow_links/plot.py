"""One picture: step time over link speed, and what gas changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.slow_links import paper
from benchmarks.slow_links.measure import Bench, Case, Plan

_COLOURS = {"ZeRO-3": "#7f7f7f", "ZeRO++": "#1f77b4", "ZeRO-topo": "#d62728"}


def _over_links(axes: Any, bench: Bench, plan: Plan) -> None:
    """Step time over the speed of the links."""
    rates = plan.over_rates()
    nodes = rates[0].num_nodes
    for scheme in plan.MAIN:
        mine = sorted((c for c in rates if c.scheme == scheme), key=lambda c: c.scarcity)
        axes.plot(
            [case.scarcity for case in mine],
            [bench.samples[case].step_time_s / case.gas for case in mine],
            marker="o",
            color=_COLOURS[scheme],
            label=scheme,
        )
    estimates = [s.value for name, s in paper.scarcities().items() if name != "nominal"]
    axes.axvspan(min(estimates), max(estimates), color="#d62728", alpha=0.08)
    axes.text(
        (min(estimates) * max(estimates)) ** 0.5, 0.98, "Frontier, 384 GCDs\n(from the ratios)",
        transform=axes.get_xaxis_transform(), ha="center", va="top", fontsize=8,
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel(
        "r: time to send the weights once over a link / own work on a micro-batch\n"
        "(below: the link in Mbit/s)"
    )
    axes.set_ylabel("step time per micro-batch (s)")
    axes.set_title(f"{nodes} nodes x 2 ranks, {plan.CURVE_GAS} micro-batches a step")
    marks = sorted(plan.curve)
    axes.set_xticks(marks, [f"{r:.2f}\n{bench.rate(r):.0f}" for r in marks])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend()


def _over_micro_batches(axes: Any, bench: Bench, plan: Plan) -> None:
    """Step time over the micro-batches of a step."""
    nodes = plan.over_rates()[0].num_nodes
    places = range(len(plan.gas_curve))
    for offset, scheme in zip((-0.25, 0.0, 0.25), plan.MAIN, strict=True):
        cases = [Case(scheme, nodes, plan.scarcities[0], gas) for gas in plan.gas_curve]
        bars = axes.bar(
            [place + offset for place in places],
            [bench.samples[case].step_time_s / case.gas for case in cases],
            width=0.25,
            color=_COLOURS[scheme],
            label=scheme,
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(list(places), [str(gas) for gas in plan.gas_curve])
    axes.set_xlabel("micro-batches a step (gas)")
    axes.set_ylabel("step time per micro-batch (s)")
    axes.set_title(f"{nodes} nodes x 2 ranks, r = {plan.scarcities[0]:.2f}")


def draw(bench: Bench, plan: Plan, path: Path) -> None:
    """Write the picture of both curves; they must have been run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    _over_links(left, bench, plan)
    _over_micro_batches(right, bench, plan)
    figure.savefig(path, dpi=130)
    plt.close(figure)
