"""The figure of a configuration's scaling over nodes."""

from __future__ import annotations

from typing import Literal

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from analysis.prediction.scaling import Scaled
from analysis.report.plots import BLUE, GRAY, image, plain
from foundation.quantities import config_text


def scaling_image(scaled: Scaled, form: Literal["png", "svg"]) -> bytes:
    """The figure as a file."""
    return image(scaling_figure(scaled), form)


def scaling_figure(scaled: Scaled) -> Figure:
    """Tokens/s beside ideal scaling, and the efficiency, with 95 % intervals."""
    nodes = scaled.prediction.num_nodes
    tokens_per_second = scaled.prediction.tokens_per_second
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    ideal = tokens_per_second[0] * nodes / nodes[0]
    left.plot(nodes, ideal, color=GRAY, linestyle=":", label="ideal")
    left.loglog(nodes, tokens_per_second, color=BLUE, marker="o", label="predicted")
    left.fill_between(nodes, *scaled.tokens_per_second_interval, color=BLUE, alpha=0.15)
    left.set_ylabel("tokens/s")
    left.legend(frameon=False)
    right.axhline(1.0, color=GRAY, linestyle=":")
    right.semilogx(nodes, scaled.efficiency, color=BLUE, marker="o")
    right.fill_between(nodes, *scaled.efficiency_interval, color=BLUE, alpha=0.15)
    right.set_ylim(0, 1.1)
    right.set_ylabel("efficiency")
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (left, right):
        plain(axes)
        axes.set_xlabel("nodes")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(nodes, [f"{n:.0f}" for n in nodes], rotation=45, fontsize=8)
    title = f"{scaled.mode} scaling: {config_text(scaled.config)}"
    figure.suptitle(title, fontsize=9, wrap=True, parse_math=False)
    return figure
