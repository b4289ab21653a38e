"""The grid: three-dimensional tensor parallelism over gx * gy * gz ranks (Singh et al. 2024, V-A).

gx splits the outputs of every other layer and the inputs of the rest; gy the reverse. gz splits a
replica's sequences, and splits the weights once more: they are gathered for each pass. gx alone is
plain tensor parallelism; priced jobs count it as ``tp``. Sums along gy are equation 3 of section
V-B, gathers and scatters along gz equations 1 and 2.
"""

from __future__ import annotations

import numpy as np

from trainer.plan.axes.axis import Axis, Exchanges
from trainer.plan.axes.mesh import Size
from trainer.plan.exchange import Exchange, Habits, Wire
from trainer.plan.jobs import Array, Jobs
from trainer.plan.rules.requirement import STATED
from trainer.plan.sizes import Matrix, layer_matrices, layer_weights


def product_sums(jobs: Jobs, matrix: Matrix) -> Exchanges:
    """All-reduces along gy of one product and its gradients; those along gx are ``tp``'s.

    The output is summed where gy splits the inputs, else the input's gradient.
    """
    group, element = jobs.layout.axes.group("gy"), jobs.tokens * jobs.options.element_bytes
    element = element / jobs.layout.tp
    if not matrix.splits_outputs:
        num_bytes = element * matrix.inputs
        return (Exchange("tensor", "all_reduce", group, num_bytes, 1, "backward"),)
    num_bytes, full = element * matrix.outputs, np.where(jobs.repeats_layers, 1.0, 0.0)
    return (
        Exchange("tensor", "all_reduce", group, num_bytes, 1, "forward"),
        Exchange("tensor", "all_reduce", group, num_bytes, full, "repeated"),
    )


def gy_exchanges(jobs: Jobs, habits: Habits) -> Exchanges:
    """All-reduces along gy of one layer's matrices."""
    return tuple(one for each in layer_matrices(jobs.model) for one in product_sums(jobs, each))


def depth_exchanges(jobs: Jobs, weights: Size, gather: Wire, reduce: Wire) -> Exchanges:
    """All-gathers of a rank's ``weights`` along gz, reduce-scatters of gradients (section V-D)."""
    group, ranks = jobs.layout.axes.group("gz"), jobs.layout.gz
    whole, full = ranks * gather(weights), np.where(jobs.repeats_layers, 1.0, 0.0)
    scattered = ranks * reduce(weights)
    return (
        Exchange("weights", "all_gather", group, whole, 1, "forward", "layer"),
        Exchange("weights", "all_gather", group, whole, full, "repeated", "layer"),
        Exchange("gradients", "reduce_scatter", group, scattered, 1, "backward", "layer_backward"),
    )


def gz_exchanges(jobs: Jobs, habits: Habits, weights: Size | None = None) -> Exchanges:
    """Exchanges along gz of a layer, or of ``weights`` per rank, in the framework's formats."""
    weights = layer_weights(jobs.model) / jobs.layout.layer_ranks if weights is None else weights
    wires = jobs.gather_bytes, habits.reduce_bytes
    return depth_exchanges(jobs, weights, lambda n: n * wires[0], lambda n: n * wires[1])


def kept_weight_bytes(jobs: Jobs, layers: Array) -> Array:
    """Gathered weights that a stage keeps for the backward pass; two layers' if recomputed."""
    held = np.where(jobs.repeats_layers, np.minimum(layers, 2.0), layers)
    block = layer_weights(jobs.model) / (jobs.layout.tp * jobs.layout.gy)
    return np.where(jobs.layout.gz > 1, held * (block * jobs.options.element_bytes), 0.0)


GY = Axis("gy", "tensor", gy_exchanges)
# Gathers along gz belong to the grid: placements do not shard along it.
GZ = Axis("gz", "tensor", gz_exchanges, STATED["grid"])
