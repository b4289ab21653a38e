"""Training states in a step: parameters on a rank, data parallelism's collectives, the update.

The collectives are those of ``trainer.plan.axes.dp``, for each class of parameters that has holders
of its own: dense ones, and experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from analysis.cost.collectives import one_adapter
from analysis.cost.compute import Compute
from analysis.cost.layer import LEAST_SHOWN, left_over, price
from analysis.cost.stages import stage_layers
from analysis.cost.time_constants import TimeConstants
from search_spaces import Cluster, Framework
from trainer.plan.axes import dp, ep
from trainer.plan.jobs import Array, Jobs
from trainer.plan.sizes import Mixture, stage_weights

_BACKWARD = 2 / 3  # of both passes' time


class Held(NamedTuple):
    """A class of parameters of the fullest stage, on one rank."""

    weights: Array
    holders: dp.Holders


def classes(jobs: Jobs, framework: Framework) -> list[Held]:
    """Dense parameters, and experts where there are any."""
    held = [Held(stage_parameters(jobs, framework), dp.dense_holders(jobs))]
    if jobs.model.mixture is not None:
        held.append(Held(expert_parameters(jobs, framework), ep.expert_holders(jobs)))
    return held


def stage_parameters(jobs: Jobs, framework: Framework) -> Array:
    """Weights on a rank of the fullest stage, without experts."""
    model, layout = jobs.model, jobs.layout
    dealt = stage_layers(jobs, framework)
    # With a pipeline the first stage has the embedding, and the last one the output layer.
    both = ((layout.pp == 1) & ~model.tied_embeddings) | jobs.folded
    tables, ranks = np.where(both, 2.0, 1.0), layout.layer_ranks
    ends = stage_weights(model, np.maximum(dealt.first, dealt.last), tables, ranks)
    plain = np.maximum(ends, stage_weights(model, dealt.inner, 0.0, ranks))
    if model.mixture is not None:
        layers = np.maximum(dealt.most, dealt.last)
        plain = plain + _beside(jobs, model.mixture, layers)[0] / layout.tp
    return np.asarray(plain)


def expert_parameters(jobs: Jobs, framework: Framework) -> Array:
    """Weights of the fullest stage's experts on one rank."""
    if jobs.model.mixture is None:
        return np.zeros(len(jobs))
    dealt = stage_layers(jobs, framework)
    layers = np.maximum(dealt.most, dealt.last)
    return np.asarray(
        _beside(jobs, jobs.model.mixture, layers)[1] / (jobs.layout.ep * jobs.layout.etp)
    )


def _beside(jobs: Jobs, mixture: Mixture, layers: Array) -> tuple[Array, Array]:
    # Dense layers are on the first of several stages, which therefore is not the fullest.
    return ep.on_stage(jobs, mixture, layers, np.where(jobs.layout.pp == 1, 1.0, 0.0))


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
    held = classes(jobs, framework)
    dense = held[0].holders
    flat = dp.in_buckets(jobs, framework, dense)
    sent = [dp.job_exchanges(jobs, framework, one.holders, one.weights) for one in held]

    def seconds(
        name: str, over: Cluster = cluster, calls: Array | None = None, *, each: bool = True
    ) -> Array:
        """Seconds of one kind of exchange in so many calls; all in a step, or once."""
        total, priced = np.zeros(len(jobs)), price(over, c)
        for one in (getattr(of_class, name) for of_class in sent):
            if calls is None:
                taken = priced(one)
            else:
                taken = calls * priced(replace(one, num_bytes=one.num_bytes / calls))
            total = total + (one.times * taken if each else taken)
        return total

    # Split weights are gathered before each pass of a micro-batch, later from a copy if there is.
    gathers = seconds("weights", by_layer, units) + seconds("secondary", by_layer, units)
    gathers = left_over(gathers, c.overlap * jobs.layout.gas * micro)

    # Split gradients are reduced in every micro-batch or once, then once over what is left.
    inner = seconds("gradients", by_layer, np.where(flat, 1.0, units), each=False)
    once = seconds("gradient_scatter") + seconds("gradient_sum")
    overlaps = np.where(
        jobs.placement.optimizer_shard > 1,
        framework.overlaps_gradients and framework.overlaps_split_gradients,
        framework.overlaps_gradients,
    )
    hidden = c.overlap * _BACKWARD * computing * overlaps
    per_micro = left_over(inner, hidden) * jobs.reductions
    every = dp.reduces_every_time(jobs, framework, dense)
    once = np.where(every, once, left_over(once, hidden))

    # Whole weights are used as they arrive, in the first forward pass of the next step.
    publish = seconds("publish")
    arrives = framework.overlaps_publish & flat & (jobs.layout.gy * jobs.layout.gz == 1)
    hidden = c.overlap * (1 - _BACKWARD) * computing * arrives
    publish = np.maximum(publish - hidden, np.where(arrives, LEAST_SHOWN, 1.0) * publish)
    return gathers, per_micro + once, publish


def update(jobs: Jobs, compute: Compute, c: TimeConstants) -> Array:
    """AdamW: per weight of the share, master weight and two moments in float32 are read and
    written, the gradient read, the weight written; and all gradients are cleared and scaled."""
    moved: Array | float = 0.0
    for weights, holders in classes(jobs, compute.framework):
        degrees = holders.placement
        shares = (24 + 4 + 2) / degrees.optimizer_shard + 8 / degrees.gradient_shard
        moved = moved + weights * shares
    return np.asarray(c.update * moved / compute.memory_bytes_per_s)
