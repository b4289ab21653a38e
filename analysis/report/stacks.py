"""The report's bars of predicted memory and step time, made of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cost.jobs import Array
from analysis.prediction.held_out import CrossValidation
from analysis.report.plots import LIGHT, PALE, RED, plain
from analysis.units import GIB

SHOWN_SHARE = 0.01  # of the longest bar: thinner parts are drawn as one
# What is kept for the model is blue and green, what a micro-batch needs is warm.
_MEMORY = {
    "weights": "#1f3a5f", "secondary": "#8fbce2", "gradients": "#2f6fab", "optimizer": "#5aa9a3",
    "activations": "#e8a33d", "working": "#f4d58d", "logits": "#b5543a",
    "buffers": "#a3a9b3", "framework": LIGHT,
}  # fmt: skip
# Computing is blue and green, sending is orange, waiting is grey.
_TIME = {
    "forward_backward": "#2f6fab", "recompute": "#8fbce2", "head": "#1f3a5f",
    "optimizer": "#5aa9a3", "tensor": "#e8a33d", "pipeline": "#f4d58d", "gather": "#e07b39",
    "context": "#7fb069", "experts": "#9b6fb3", "gradients": "#b5543a", "publish": "#f2b8a0",
    "bubble": LIGHT, "launch": "#a3a9b3",
}  # fmt: skip


@dataclass(frozen=True)
class Stack:
    """Bars that are made of parts, one row per trial.

    Attributes:
        parts: by name, in the order in which they are stacked.
        measured: what whole bars are compared with; nan where nothing is known.
    """

    parts: Mapping[str, Array]
    measured: Array

    def shown(self) -> dict[str, Array]:
        """The parts that can be seen, and the others together."""
        least = SHOWN_SHARE * float(np.max(sum(self.parts.values())))
        shown = {name: v for name, v in self.parts.items() if v.max() >= least}
        rest = [v for name, v in self.parts.items() if name not in shown and v.max() > 0]
        return {**shown, "other": np.sum(rest, axis=0)} if rest else shown


def stacks_of(validation: CrossValidation, trials: Sequence[int]) -> Figure:
    """The parts of these trials' predictions, by the model that has learned from the run."""
    rows = [validation.trials.index(number) for number in trials]
    prediction = validation.prediction
    memory = {name: part[rows] / GIB for name, part in prediction.memory.as_dict().items()}
    time = {name: part[rows] for name, part in prediction.time.as_dict().items()}
    return stacks_figure(
        [f"trial {number}" for number in trials],
        Stack(memory, validation.measured_bytes[rows] / GIB),
        Stack(time, validation.measured_s[rows]),
        prediction.model.memory_limit_bytes / GIB,
    )


def stacks_figure(
    labels: Sequence[str], memory: Stack, time: Stack, memory_limit_gib: float
) -> Figure:
    """Predicted memory and step time of a few trials by part, the measured totals marked.

    Args:
        labels: of the trials, the best first.
        memory: GiB by part.
        time: seconds by part.
        memory_limit_gib: of one GPU.
    """
    figure = Figure(figsize=(9, 0.36 * len(labels) + 1.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw(left, memory, _MEMORY)
    left.axvline(memory_limit_gib, color=RED, linewidth=1.2, linestyle="--", label="GPU memory")
    left.set_xlim(right=max(left.get_xlim()[1], 1.03 * memory_limit_gib))
    _draw(right, time, _TIME)
    left.set_xlabel("predicted peak memory (GiB)", fontsize=9)
    right.set_xlabel("predicted step time (s)", fontsize=9)
    left.set_yticks(range(len(labels)), labels, fontsize=9, parse_math=False)
    left.set_ylim(len(labels) - 0.4, -0.6)
    for axes, side in ((left, "left"), (right, "right")):
        plain(axes)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8)
        figure.legend(
            *axes.get_legend_handles_labels(), fontsize=7.5, ncols=4, frameon=False,
            loc=f"outside lower {side}", handlelength=1.0, columnspacing=1.2,
        )  # fmt: skip
    return figure


def _draw(axes: Axes, stack: Stack, colors: Mapping[str, str]) -> None:
    rows = np.arange(len(stack.measured))
    start = np.zeros(len(rows))
    for part, values in stack.shown().items():
        axes.barh(
            rows, values, 0.66, left=start, color=colors.get(part, PALE),
            label=part.replace("_", " "), edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        start = start + values
    axes.scatter(
        stack.measured, rows, marker="D", s=26, color="black", edgecolor="white", zorder=3,
        label="measured",
    )  # fmt: skip
    axes.margins(x=0.06)
    axes.set_xlim(left=0)
