"""What the grid of the built-in trainer exchanges beyond tensor parallelism, in bytes and seconds.

Along its first axis the grid sends what tensor parallelism sends, and ``Jobs.tp`` stands for it.
What is here goes along the other two: equations 1 to 3 of Singh et al. 2024, section V-B, layer by
layer. Which bandwidth a group reaches, their equation 7, is in ``groups``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost import collectives as links
from analysis.cost.compute import PassTimes
from analysis.cost.exchange import Exchange
from analysis.cost.groups import along
from analysis.cost.jobs import FULL, Array, Jobs
from analysis.cost.time_constants import TimeConstants
from search_spaces import Cluster, Framework
from trainer.plan.sizes import layer_weights


@dataclass(frozen=True)
class DepthExchanges:
    """Along gz, of a micro-batch.

    Attributes:
        weights: gathers blocks before each forward pass.
        gradients: scatters theirs behind the backward pass.
    """

    weights: Exchange
    gradients: Exchange


def depth_exchanges(jobs: Jobs, framework: Framework, weights: Array) -> DepthExchanges:
    """Equations 1 and 2, of so many weights on a rank; ``share`` of eq. 1 is what a rank holds.

    Args:
        jobs: of which.
        framework: format of gradients on their way.
        weights: on a rank, cut along gz.
    """
    group = along(jobs.axes, "gz")
    gather_bytes = np.where(jobs.gather_bits > 0, jobs.gather_bits / 8, jobs.element_bytes)
    whole = weights * jobs.gz
    return DepthExchanges(
        weights=Exchange("all_gather", group, whole * gather_bytes, _forwards(jobs)),
        gradients=Exchange(
            "reduce_scatter", group, whole * framework.reduce_bytes, np.ones(len(jobs))
        ),
    )


def sums(jobs: Jobs) -> tuple[Exchange, ...]:
    """Equation 3 along gy, of one layer on a micro-batch.

    Of products whose inputs lie along gy the outputs are summed in the forward pass: queries, keys
    and values; up. Of the transposed ones the inputs' gradients are, in the backward pass.
    """
    group, one = along(jobs.axes, "gy"), np.ones(len(jobs))
    element = jobs.tokens * jobs.element_bytes / jobs.tp
    queries = jobs.attention_size
    keys = queries * jobs.kv_heads / jobs.num_heads
    up = np.where(jobs.gated, 2.0, 1.0) * jobs.ffn_size
    again = _forwards(jobs)
    return (
        Exchange("all_reduce", group, element * (queries + 2 * keys), again),
        Exchange("all_reduce", group, element * up, again),
        Exchange("all_reduce", group, element * queries, one),
        Exchange("all_reduce", group, element * jobs.ffn_size, one),
    )


def layer_s(
    jobs: Jobs,
    cluster: Cluster,
    framework: Framework,
    c: TimeConstants,
    forward: PassTimes,
    backward: PassTimes,
) -> Array:
    """Exposed seconds of one layer's exchanges along gy and gz on one micro-batch.

    Gathers are begun a layer ahead and scatters waited for at the end, so that both hide behind
    the passes (section V-D).
    """
    total = np.zeros(len(jobs))
    if (jobs.gy > 1).any():
        for each in sums(jobs):
            seconds = links.all_reduce_s(cluster, c, each.group, each.num_bytes)
            total = total + np.where(jobs.gy > 1, each.times * seconds, 0.0)
    if (jobs.gz > 1).any():
        depth = depth_exchanges(jobs, framework, layer_weights(jobs) / jobs.layer_ranks)
        gather, scatter = depth.weights, depth.gradients
        gathers = links.all_gather_s(cluster, c, gather.group, gather.num_bytes)
        scatters = links.reduce_scatter_s(cluster, c, scatter.group, scatter.num_bytes)
        for taken, times, beside in (
            (gathers, gather.times, forward.device),
            (scatters, scatter.times, backward.device),
        ):
            shown = np.maximum(taken - c.overlap * beside, 0.05 * taken)
            total = total + np.where(jobs.gz > 1, times * shown, 0.0)
    return np.asarray(total)


def kept_weight_bytes(jobs: Jobs, layers: Array) -> Array:
    """Whole blocks that a micro-batch keeps for its backward pass: of a stage's layers.

    Where layers are repeated there is only the one in work, and the next one.
    """
    held = np.where(jobs.recompute == FULL, np.minimum(layers, 2.0), layers)
    block = layer_weights(jobs) / (jobs.tp * jobs.gy) * jobs.element_bytes
    return np.where(jobs.gz > 1, held * block, 0.0)


def _forwards(jobs: Jobs) -> Array:
    return np.where(jobs.recompute == FULL, 2.0, 1.0)
