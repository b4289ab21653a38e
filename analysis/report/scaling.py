"""The figure of a configuration over more and more nodes."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from analysis.cost.jobs import Array
from analysis.report.plots import BLUE, GRAY, plain

Range = tuple[Array, Array]


@dataclass(frozen=True)
class Curve:
    """What is drawn: columns over ``nodes``, ascending; ranges are 95 % intervals."""

    title: str
    nodes: Array
    tokens_per_second: Array
    tokens_per_second_range: Range
    efficiency: Array
    efficiency_range: Range


def scaling_figure(curve: Curve) -> Figure:
    """Tokens/s beside what twice the nodes would ideally bring, and the efficiency."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    ideal = curve.tokens_per_second[0] * curve.nodes / curve.nodes[0]
    left.plot(curve.nodes, ideal, color=GRAY, linestyle=":", label="ideal")
    left.loglog(curve.nodes, curve.tokens_per_second, color=BLUE, marker="o", label="predicted")
    left.fill_between(curve.nodes, *curve.tokens_per_second_range, color=BLUE, alpha=0.15)
    left.set_ylabel("tokens/s")
    left.legend(frameon=False)
    right.axhline(1.0, color=GRAY, linestyle=":")
    right.semilogx(curve.nodes, curve.efficiency, color=BLUE, marker="o")
    right.fill_between(curve.nodes, *curve.efficiency_range, color=BLUE, alpha=0.15)
    right.set_ylim(0, 1.1)
    right.set_ylabel("efficiency")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (left, right):
        plain(axes)
        axes.set_xlabel("nodes")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(curve.nodes, [f"{n:.0f}" for n in curve.nodes], rotation=45, fontsize=8)
    figure.suptitle(curve.title, fontsize=9, wrap=True, parse_math=False)
    return figure
