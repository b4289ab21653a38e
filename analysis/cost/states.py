"""Time of what happens to the states in a step: data parallelism's collectives, the optimizer."""

from __future__ import annotations

import numpy as np

from analysis.cost import collectives as links
from analysis.cost.collectives import one_adapter
from analysis.cost.compute import Compute
from analysis.cost.experts import as_experts_are_held
from analysis.cost.jobs import Array, Jobs
from analysis.cost.stages import stage_layers
from analysis.cost.time_constants import TimeConstants
from analysis.cost.traffic import (
    expert_parameters,
    in_buckets,
    reduces_every_time,
    stage_parameters,
    state_exchanges,
)
from search_spaces import Cluster, Framework

_TIMED = {
    "all_gather": links.all_gather_s,
    "reduce_scatter": links.reduce_scatter_s,
    "all_reduce": links.all_reduce_s,
}
_BACKWARD = 2 / 3  # of both passes' time


def exchanges(
    jobs: Jobs,
    cluster: Cluster,
    framework: Framework,
    c: TimeConstants,
    computing: Array,
    micro: Array,
) -> tuple[Array, Array, Array]:
    """Exposed seconds of gathering weights, reducing gradients and publishing weights.

    Args:
        computing: of the device, both passes of one micro-batch on the slowest stage.
        micro: the same with what the device waits for.
    """
    by_layer = one_adapter(cluster) if framework.one_adapter else cluster
    # Split weights and gradients come and go layer by layer, and each call has its latency, but for
    # gradients in flat buckets.
    units = stage_layers(jobs, framework).most + 1
    flat = in_buckets(jobs, framework)
    exchanges = [state_exchanges(jobs, framework)]
    if jobs.mixture is not None:
        experts = expert_parameters(jobs, framework)
        exchanges.append(state_exchanges(as_experts_are_held(jobs), framework, experts))

    def seconds(
        name: str,
        calls: Array | float = 1.0,
        over: Cluster = cluster,
        *,
        each: bool = True,
    ) -> Array | float:
        """Of one kind of exchange: all in a step, or once."""
        found: Array | float = 0.0
        for exchange in (getattr(one, name) for one in exchanges):
            timed = _TIMED[exchange.operation]
            taken = calls * timed(over, c, exchange.group, exchange.num_bytes / calls)
            found = found + (exchange.times * taken if each else taken)
        return found

    # Split weights are gathered before each pass of a micro-batch, later from a copy if there is.
    gathers = np.asarray(
        seconds("weights", units, by_layer) + seconds("secondary", units, by_layer)
    )
    gathers = np.maximum(gathers - c.overlap * jobs.gas * micro, 0.05 * gathers)

    # Split gradients are reduced in every micro-batch or once, then once over what is left.
    inner = np.asarray(seconds("gradients", np.where(flat, 1.0, units), by_layer, each=False))
    once = np.asarray(seconds("gradient_scatter") + seconds("gradient_sum"))
    overlaps = np.where(
        jobs.optimizer_shard > 1,
        framework.overlaps_gradients and framework.overlaps_split_gradients,
        framework.overlaps_gradients,
    )
    hidden = c.overlap * _BACKWARD * computing * overlaps
    per_micro = np.maximum(inner - hidden, 0.05 * inner) * jobs.reductions
    every = reduces_every_time(jobs, framework)
    once = np.where(every, once, np.maximum(once - hidden, 0.05 * once))

    # Whole weights are used as they arrive, in the first forward pass of the next step.
    publish = np.asarray(seconds("publish"))
    arrives = framework.overlaps_publish & flat & (jobs.gy * jobs.gz == 1)
    hidden = c.overlap * (1 - _BACKWARD) * computing * arrives
    publish = np.maximum(publish - hidden, np.where(arrives, 0.05, 1.0) * publish)
    return gathers, per_micro + once, publish


def update(jobs: Jobs, compute: Compute, c: TimeConstants) -> Array:
    """AdamW: per weight of the share, master weight and two moments in float32 are read and
    written, the gradient read, the weight written; and all gradients are cleared and scaled."""

    def moved_of(weights: Array, held: Jobs) -> Array:
        shares = (24 + 4 + 2) / held.optimizer_shard + 8 / held.gradient_shard
        return np.asarray(weights * shares)

    moved = moved_of(stage_parameters(jobs, compute.framework), jobs)
    if jobs.mixture is not None:
        experts = expert_parameters(jobs, compute.framework)
        moved = moved + moved_of(experts, as_experts_are_held(jobs))
    return np.asarray(c.update * moved / compute.memory_bytes_per_s)
