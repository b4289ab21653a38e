"""The axes of the built-in trainer, by name."""

from __future__ import annotations

from trainer.plan.axes import cp, grid, pp, tp
from trainer.plan.axes.axis import Axis

AXES: dict[str, Axis] = {axis.name: axis for axis in (tp.AXIS, grid.GY, grid.GZ, cp.AXIS, pp.AXIS)}
"""The axes that split layers, tokens or stages; ``dp`` is what they leave of the ranks."""
