"""The Pareto front on the report's page: a picture whose points lead to their trials, a table."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis import units
from analysis.report.plots import BLUE, DARK, PALE, plain
from analysis.run.fold import Run
from analysis.run.trial import Trial

WIDE = 8.0  # ratio of the largest to the smallest value, from which an axis is logarithmic
NAMED = 12  # points of the front that carry their trial's number
TICKS = 10  # values of a whole number that are all named on its axis


def shown(run: Run, trial: Trial) -> dict[str, float]:
    """A success's objectives by key, in the units in which they are shown."""
    return {key: units.scaled(key, trial.objectives[key]) for key, _ in run.goals}


def sought(run: Run) -> str:
    """``Maximizes throughput (tokens/s), minimizes nodes``."""
    goals = [f"{'maximizes' if up else 'minimizes'} {units.label(k)}" for k, up in run.goals]
    text = ", ".join(goals)
    return text[0].upper() + text[1:]


def front_figure(run: Run, listed: Collection[int]) -> Figure:
    """Successes over the first two objectives, those of the front in blue.

    With two objectives the line is what the front guarantees: the best first objective at no
    worse a second one. With three, colour is the third, and no line is drawn.

    Args:
        run: with several objectives.
        listed: trials that are drawn: a point leads to its trial on the page.
    """
    (y_key, _), (x_key, x_up), *third = run.goals
    front, every = run.front(), run.comparable()
    numbers = {t.number for t in front}
    best = [t for t in front if t.number in listed]
    rest = [t for t in every if t.number in listed and t.number not in numbers]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    _points(
        axes, run, rest, s=22, color=PALE, label=f"dominated ({len(every) - len(front)})", zorder=2
    )
    colour: dict[str, Any] = {"color": BLUE}
    if third:
        colour = {"c": [shown(run, t)[third[0][0]] for t in best], "cmap": "viridis"}
    drawn = _points(
        axes,
        run,
        best,
        s=58,
        edgecolor=DARK,
        label=f"Pareto-optimal ({len(front)})",
        zorder=4,
        **colour,
    )
    if third:
        figure.colorbar(drawn, ax=axes, pad=0.01).set_label(
            units.label(third[0][0]), parse_math=False
        )
    for axis, key in ((axes.xaxis, x_key), (axes.yaxis, y_key)):
        _scale(axes, "x" if axis is axes.xaxis else "y", [shown(run, t)[key] for t in every])
        axis.set_label_text(units.label(key), parse_math=False)
    if not third:
        _steps(axes, [(shown(run, t)[x_key], shown(run, t)[y_key]) for t in best], x_up)
    for trial in best[:NAMED]:
        at = shown(run, trial)
        axes.annotate(
            str(trial.number), (at[x_key], at[y_key]), xytext=(0, 8), textcoords="offset points",
            ha="center", fontsize=9, color=DARK, zorder=5, url=_link(trial),
        )  # fmt: skip
    plain(axes)
    axes.grid(axis="y", color=PALE, linewidth=0.4)
    axes.legend(frameon=False, fontsize=9, loc="best")
    return figure


def inline_svg(figure: Figure) -> str:
    """The figure as an SVG element for a page; text stays text, links lead to anchors."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "meshtune"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def _link(trial: Trial) -> str:
    return f"#trial-{trial.number}"


def _points(axes: Axes, run: Run, trials: list[Trial], **style: Any) -> Any:
    (y_key, _), (x_key, _), *_ = run.goals
    at = [shown(run, trial) for trial in trials]
    drawn = axes.scatter([p[x_key] for p in at], [p[y_key] for p in at], **style)
    drawn.set_urls([_link(trial) for trial in trials])
    return drawn


def _scale(axes: Axes, which: str, values: list[float]) -> None:
    axis: Any = axes.xaxis if which == "x" else axes.yaxis
    distinct = sorted(set(values))
    if min(values) > 0 and max(values) / min(values) > WIDE:
        scale: Mapping[str, Any] = {f"{which}scale": "log"}
        axes.set(**scale)
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda x, _: units.number(x)))
        low, high = math.log10(distinct[0]), math.log10(distinct[-1])
        axis.set_ticks([float(f"{t:.1g}") for t in np.logspace(low, high, 6)])
    else:
        axis.set_major_locator(MaxNLocator(7))
    if len(distinct) <= TICKS and all(float(v).is_integer() for v in distinct):
        axis.set_ticks(distinct)


def _steps(axes: Axes, points: list[tuple[float, float]], x_up: bool) -> None:
    """From the point with the best second objective towards worse ones, on to the edge."""
    axes.margins(0.06, 0.1)
    axes.autoscale_view()
    limits = axes.get_xlim()
    ordered = sorted(points, reverse=x_up)
    x, y = zip(*ordered, strict=True)
    x, y = (*x, limits[0 if x_up else 1]), (*y, y[-1])
    axes.step(x, y, where="post", color=DARK, linewidth=1.4, zorder=3)
    axes.set_xlim(limits)
