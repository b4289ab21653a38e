"""Figures for notebooks and papers by matplotlib, without pyplot: text of 8 pt, any width."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from analysis import units
from analysis.prediction.scaling import Scaled
from analysis.report.figures import MAX_PARAMETERS, effects
from analysis.report.forests import Sensitivity
from analysis.report.trajectory import failure_window, trajectory
from analysis.run.fold import Run
from analysis.run.trial import COMPLETED, meaning
from foundation.quantities import config_text

PAGE = 6.9  # inches: the text width of the usual papers; a column has 3.3
_STYLE: dict[str, Any] = {"font.size": 8, "axes.titlesize": "medium", "lines.linewidth": 1.2}
_SAVED = {"svg.fonttype": "none", "pdf.fonttype": 42}  # text stays text
DPI = 200
EDGE = 1.03  # end of the time axis, relative to the last trial
# Those of the page's light theme (templates/page.css), distinct also for colour-blind people.
BLUE, DARK, RED = "#0072b2", "#1c2430", "#d55e00"
GRAY, LIGHT = "#8a8f98", "#dfe3e8"
COLOURS = {"green": BLUE, "red": RED, "gray": GRAY}  # by ``Kind``'s colour
_TIME_UNITS = ((1.5 * 86400, 86400, "days"), (5400, 3600, "hours"), (300, 60, "minutes"))


class Drawn(Figure):
    """A figure that notebooks show, and whose text stays text in a file."""

    def savefig(self, fname: Any, **options: Any) -> None:
        with rc_context(_SAVED):
            super().savefig(fname, **{"dpi": DPI, **options})

    def encoded(self, form: str) -> bytes:
        """The content of a ``png``, ``svg`` or ``pdf`` file."""
        buffer = io.BytesIO()
        self.savefig(buffer, format=form)
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.encoded("png")


def plot(
    what: Run | Sensitivity | Scaled, effect: str = "effect on the objective", width: float = PAGE
) -> Drawn:
    """A figure ``width`` inches wide: of a run its trajectory, of a sensitivity its SHAP values, of
    a scaling its throughput and efficiency. ``effect`` names what SHAP values are.
    """
    with rc_context(_STYLE):
        if isinstance(what, Run):
            return trajectory_figure(what, width)
        if isinstance(what, Sensitivity):
            return sensitivity_figure(what, effect, width)
        return scaling_figure(what, width)


def trajectory_figure(run: Run, width: float) -> Drawn:
    """Objectives, best so far, failures by kind and their rolling share over time.

    After Dash et al. 2023, Figure 9.
    """
    frame, key = trajectory(run), run.objective_key
    frame = frame.assign(**{n: units.scaled(key, frame[n]) for n in ("objective", "best")})
    kinds = frame.loc[frame["kind"] != "ok", "kind"].value_counts().index.tolist()
    heights = (0.35 * width, 0.17 * max(len(kinds), 1) + 0.1, 0.8)
    figure = Drawn(figsize=(width, sum(heights) + 0.8), layout="constrained")
    top, strip, bottom = figure.subplots(3, 1, sharex=True, height_ratios=heights)
    longest_s = frame["search_s"].max() if len(frame) else 0.0
    shown = ((scale_s, name) for at_s, scale_s, name in _TIME_UNITS if longest_s >= at_s)
    scale_s, unit = next(shown, (1.0, "s"))
    x = frame["search_s"] / scale_s
    _draw_objective(top, x, frame, units.label(key))
    top.set_title(run.space, loc="left", parse_math=False)
    _draw_failures(strip, x, frame, kinds)
    _draw_failure_share(bottom, x, frame)
    restarts_s = [run.search_s(t) for t in run.opened_t[1:]]
    for axes in (top, strip, bottom):
        plain(axes)
        for restart_s in restarts_s:
            axes.axvline(restart_s / scale_s, color=GRAY, linewidth=0.8, linestyle=":")
    if len(frame):
        bottom.set_xlim(0, x.max() * EDGE or 1.0)
    bottom.set_xlabel(f"search time ({unit})" + (", dotted: resumed" if restarts_s else ""))
    figure.align_ylabels()
    return figure


def _draw_objective(axes: Axes, x: pd.Series[float], frame: pd.DataFrame, objective: str) -> None:
    axes.set_ylabel(objective, parse_math=False)
    if frame["objective"].isna().all():
        axes.set_yticks([])
        _note(axes, "no successful trial")
        return
    axes.scatter(x, frame["objective"], s=9, color=BLUE, alpha=0.8, linewidth=0, label="trial")
    axes.step(
        *_to_the_edge(x, frame["best"]), where="post", color=DARK, linewidth=1.6,
        label="best so far",
    )  # fmt: skip
    axes.margins(y=0.08)
    axes.legend(
        frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1),
        borderaxespad=0.1,
    )  # fmt: skip


def _draw_failures(axes: Axes, x: pd.Series[float], frame: pd.DataFrame, kinds: list[str]) -> None:
    for row, kind in enumerate(kinds):
        times = x[frame["kind"] == kind]
        color = COLOURS[meaning(kind)[1]]
        axes.scatter(times, np.full(len(times), row), s=12, marker="v", color=color, linewidth=0)
    counts = frame["kind"].value_counts()
    axes.set_yticks(range(len(kinds)), [f"{kind} ({counts[kind]})" for kind in kinds])
    axes.set_ylim(max(len(kinds), 1) - 0.4, -0.6)
    if not kinds:
        _note(axes, "no failures")


def _draw_failure_share(axes: Axes, x: pd.Series[float], frame: pd.DataFrame) -> None:
    window = failure_window(int(frame["kind"].isin(COMPLETED).sum()))
    x, share = _to_the_edge(x, frame["failure_share"])
    axes.step(x, share, where="post", color=RED, linewidth=1.4)
    axes.fill_between(x, 0, share, step="post", color=RED, alpha=0.15, linewidth=0)
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_yticks([0, 0.5, 1])
    axes.set_ylabel(f"failed of\nlast {window}")


def _to_the_edge(
    x: pd.Series[float], y: pd.Series[float]
) -> tuple[pd.Series[float], pd.Series[float]]:
    """A step line extended at its last value to the edge of the axes."""
    return (
        pd.concat([x, x.tail(1) * EDGE], ignore_index=True),
        pd.concat([y, y.tail(1)], ignore_index=True),
    )


def _note(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=GRAY)


def sensitivity_figure(sensitivity: Sensitivity, effect: str, width: float) -> Drawn:
    """Mean |SHAP| per parameter as bars (Dash et al. 2023, Figure 10), and beside them what each
    value does, as on the report's page.

    Whiskers are the bootstrap interval. A dot's colour is the parameter's value from lowest to
    highest. ``effect`` names what SHAP values are an effect on, with the unit.
    """
    found = effects(sensitivity, MAX_PARAMETERS)
    figure = Drawn(figsize=(width, 0.3 * len(found) + 0.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.0, 1.35))
    rows = range(len(found))
    means, low, high = ([row[key] for row in found] for key in ("mean", "low", "high"))
    left.barh(rows, means, height=0.62, color=BLUE)
    left.hlines(rows, low, high, color=DARK, linewidth=1.4)
    left.set_xlim(0, 1.05 * max(*means, *high) or 1.0)
    left.set_xlabel("mean |SHAP|", parse_math=False)
    left.set_yticks(rows, [row["name"] for row in found], parse_math=False)
    left.set_ylim(len(found) - 0.5, -0.5)
    for y, row in enumerate(found):
        shap = [mean for _, mean in row["values"]]
        share = np.linspace(0, 1, len(shap))
        right.scatter(shap, [y] * len(shap), s=16, c=share, cmap="viridis", vmin=0, vmax=1)
    right.axvline(0, color=GRAY, linewidth=0.8, zorder=0)
    right.set_xlabel(f"mean SHAP value, {effect}", parse_math=False)
    _color_key(figure, right)
    for axes in (left, right):
        plain(axes)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(3))
    return figure


def _color_key(figure: Figure, axes: Axes) -> None:
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(ScalarMappable(cmap="viridis"), ax=axes, fraction=0.03, pad=0.02)
    bar.set_ticks([0, 1], labels=["low", "high"])
    bar.set_label("parameter's value", labelpad=-10)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)


def plain(axes: Axes) -> None:
    """Remove top and right spines; draw a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color=LIGHT, linewidth=0.5)
    axes.set_axisbelow(True)


def scaling_figure(scaled: Scaled, width: float) -> Drawn:
    """Tokens/s beside ideal scaling, and the efficiency, with 95 % intervals."""
    nodes = scaled.prediction.num_nodes
    tokens_per_second = scaled.prediction.tokens_per_second
    figure = Drawn(figsize=(width, 0.42 * width), layout="constrained")
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
        axes.set_xticks(nodes, [f"{n:.0f}" for n in nodes], rotation=45)
    title = f"{scaled.mode} scaling: {config_text(scaled.config)}"
    figure.suptitle(title, wrap=True, parse_math=False, fontsize=8)
    return figure
