"""Time of one transformer layer's passes on one micro-batch, by cause.

``compute`` times the work of one GPU. The axes of parallelism say what its ranks exchange meanwhile
(``trainer.plan.axes``), and what that can hide behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from analysis.cost import collectives as links
from analysis.cost.activations import repeats_attention
from analysis.cost.compute import Compute, smooth_max
from analysis.cost.groups import members_per_node
from analysis.cost.time_constants import TimeConstants
from search_spaces import Cluster, Framework
from trainer.plan.axes import ep
from trainer.plan.axes.registry import AXES
from trainer.plan.axes.tp import splits_sequence
from trainer.plan.exchange import Exchange, Pass, Work
from trainer.plan.jobs import BY_HABIT, FLEX, FULL, SELECTIVE, STEP_GRAPHS, Array, Jobs, Mask
from trainer.plan.sizes import Mixture

LEAST_SHOWN = 0.05  # exposed share of communication that could hide entirely

_TIMED = {
    "all_gather": links.all_gather_s,
    "reduce_scatter": links.reduce_scatter_s,
    "all_reduce": links.all_reduce_s,
    "all_to_all": links.all_to_all_s,
}
Price = Callable[[Exchange], Array]


def price(cluster: Cluster, c: TimeConstants) -> Price:
    """A function that gives the seconds of an exchange, once; alike ones are computed once."""
    known: dict[tuple[str, int, int], tuple[Exchange, Array]] = {}

    def seconds(exchange: Exchange) -> Array:
        # The exchange is kept with its price, so that no other object takes over its parts' ids.
        key = (exchange.operation, id(exchange.group), id(exchange.num_bytes))
        if key not in known:
            timed = _TIMED[exchange.operation]
            known[key] = exchange, timed(cluster, c, exchange.group, exchange.num_bytes)
        return known[key][1]

    return seconds


def left_over(taken: Array, hidden: Array) -> Array:
    """Exposed seconds of communication of which so many could hide; a part always shows."""
    return np.maximum(taken - hidden, LEAST_SHOWN * taken)


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer's passes on one micro-batch, by cause.

    Attributes:
        device: computation of both passes.
        again: computation that the backward pass repeats.
        tensor, context, experts: exposed communication of these axes.
        launch: what the host takes beyond all of these.
    """

    device: Array
    again: Array
    tensor: Array
    context: Array
    experts: Array
    launch: Array

    @property
    def total(self) -> Array:
        sent = self.tensor + self.context + self.experts
        return self.device + self.again + sent + self.launch


def layer(
    jobs: Jobs, cluster: Cluster, framework: Framework, compute: Compute, c: TimeConstants
) -> Layer:
    """Both passes of one layer."""
    forward = compute.forward(jobs)
    backward = compute.backward(jobs, forward)
    full, layout = jobs.repeats_layers, jobs.layout
    passes = np.where(full, 2.0, 1.0)
    attention_passes = np.where(jobs.options.recompute > 0, 2.0, 1.0)
    beside: dict[Work, Array] = {
        "products": forward.gemm + backward.gemm,
        "attention": attention_passes * forward.attention,
        "attention_backward": backward.attention,
        "layer": passes * forward.device,
        "layer_backward": backward.device,
    }
    seconds = price(cluster, c)
    exposed: dict[str, Array] = {"tensor": np.zeros(len(jobs)), "context": np.zeros(len(jobs))}
    waited: dict[Pass, Array] = {}
    for axis in AXES.values():
        if not (layout.axes.sizes[axis.name] > 1).any():
            continue
        sent = axis.layer_exchanges(jobs, framework)
        exposed[axis.cause] = exposed[axis.cause] + exposed_s(sent, seconds, c, beside)
        if axis.name == "tp":
            waited = {within: _sum(sent, seconds, within) for within in ("forward", "backward")}
    by_host = (layout.tp > 1) & (jobs.options.graphs != STEP_GRAPHS)
    calls = np.where(by_host, 2.0, 0.0) * np.where(splits_sequence(jobs, framework), 2.0, 1.0)
    across = (layout.pp > 1) & (layout.world_size > cluster.domain_gpus)
    call = c.host_call_s + np.where(across, c.contended_call_s * layout.tp, 0.0)

    def host(device: Array, launch: Array) -> Array:
        """Waiting for the host: launching hides behind the device's work, if that is long."""
        return smooth_max(device, launch) - device

    first = host(forward.device + waited.get("forward", 0.0), forward.launch + calls * call)
    second = host(
        backward.device + waited.get("backward", 0.0), backward.launch + 1.5 * calls * call
    )
    some = np.where(repeats_attention(jobs, framework), forward.attention, forward.elementwise)
    again = np.where(full, forward.device, 0.0)
    again = again + np.where(jobs.options.recompute == SELECTIVE, some, 0.0)
    device = forward.device + backward.device
    return Layer(
        device=device,
        again=again,
        **exposed,
        experts=dispatch_s(jobs, cluster, framework, c, device),
        launch=first * passes + second,
    )


def exposed_s(
    exchanges: Iterable[Exchange], seconds: Price, c: TimeConstants, beside: Mapping[Work, Array]
) -> Array:
    """Seconds of a layer's exchanges that do not hide behind its computation."""
    taken: dict[Work, Array] = {}
    for one in exchanges:
        taken[one.behind] = taken.get(one.behind, 0.0) + one.times * seconds(one)
    shown = taken.pop("", 0.0)
    for work, sent in taken.items():
        shown = shown + left_over(sent, c.overlap * beside[work])
    return np.asarray(shown)


def _sum(exchanges: Iterable[Exchange], seconds: Price, within: Pass) -> Array:
    """Seconds of the exchanges of one pass."""
    return np.asarray(sum(one.times * seconds(one) for one in exchanges if one.within == within))


def dispatch_s(
    jobs: Jobs, cluster: Cluster, framework: Framework, c: TimeConstants, device_s: Array
) -> Array:
    """Exposed seconds of one layer's tokens on one micro-batch, in the mean over all layers.

    Each pass sends tokens to their experts and back, which the experts wait for unless they compute
    for another micro-batch meanwhile, and gathers and sums over the ranks that split an expert
    (Megatron Core, "Mixture of Experts").

    Args:
        device_s: of both passes of one layer on the device.
    """
    mixture, layout = jobs.model.mixture, jobs.layout
    if mixture is None:
        return np.zeros(len(jobs))
    passes = 2 + np.where(jobs.options.recompute == FULL, 1.0, 0.0)
    ways = 2 * passes * np.where(layout.ep > 1, way_s(jobs, mixture, cluster, framework, c), 0.0)
    alone = c.exposed_dispatch * ways
    left = left_over(ways, c.overlap * device_s)
    # The first forward and the last backward pass have no other micro-batch beside them.
    beside = np.where(jobs.options.overlaps_dispatch, 1 - 1 / layout.gas, 0.0)
    shown = beside * np.minimum(left, alone) + (1 - beside) * alone
    seconds = price(cluster, c)
    split = sum(seconds(one) for one in ep.split_exchanges(jobs, mixture))
    inner = np.where(layout.etp > 1, split, 0.0)
    return np.asarray(ep.mixed_share(jobs, mixture) * (shown + passes * inner))


def way_s(
    jobs: Jobs, mixture: Mixture, cluster: Cluster, framework: Framework, c: TimeConstants
) -> Array:
    """Seconds of one way of a micro-batch's tokens.

    A token is sent to each of its experts; or once to each node that has one of them, and from
    there to its ranks at the same time (DeepSeek-AI 2024, section 3.2.2).
    """
    plain = ep.dispatch(jobs, mixture)
    ranks = jobs.layout.ep
    members = members_per_node(cluster, plain.group)
    inside = ep.dispatch(jobs, mixture, ranks, near=members)
    across = ep.dispatch(jobs, mixture, ranks / members)
    seconds = price(cluster, c)
    inside_s = seconds(inside)
    once = np.where(members < ranks, np.maximum(inside_s, seconds(across)), inside_s)
    return np.where(_sends_once(jobs, framework), once, seconds(plain))


def _sends_once(jobs: Jobs, framework: Framework) -> Mask:
    dispatcher = jobs.options.dispatcher
    return np.where(dispatcher == BY_HABIT, framework.sends_tokens_once, dispatcher == FLEX)
