"""Time of one transformer layer's passes on one micro-batch, by cause.

``compute`` times the work of one GPU. The axes of parallelism (``trainer.plan.axes``) say what its
ranks exchange meanwhile, and which work can hide it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from analysis.cost.activations import layer_bytes, repeated_work, repeats_attention
from analysis.cost.collectives import collective_s
from analysis.cost.compute import BACKWARD_LAUNCHES, Compute, PassTimes, smooth_max
from analysis.cost.groups import members_per_node
from analysis.cost.time_constants import TimeConstants
from search_spaces import Cluster, Framework
from trainer.plan.axes import ep
from trainer.plan.axes.axis import Cause
from trainer.plan.axes.registry import AXES
from trainer.plan.exchange import Exchange, Pass, Work
from trainer.plan.jobs import SELECTIVE, Array, Jobs

LEAST_SHOWN = 0.05  # exposed share of communication that could hide entirely
_BACKWARD = 2 / 3  # of the device's time in both passes
# Recomputed share of a layer's elementwise traffic: norms, rotation and activation, without
# residuals and the inputs and outputs of products.
ELEMENTWISE_AGAIN = 0.6
HOST_GB_PER_S = 31.5  # between a GPU and its host, if the cluster states none: PCIe Gen4 x16
HOST_SHARE = 0.8  # of that rate in copies of pinned memory: nvbandwidth's 12.36 of Gen3's 15.75

Price = Callable[[Exchange], Array]


def price(cluster: Cluster, c: TimeConstants) -> Price:
    """A function that gives an exchange's seconds for one time; equal ones are computed once."""
    known: dict[tuple[str, int, int], tuple[Exchange, Array]] = {}

    def seconds(exchange: Exchange) -> Array:
        # The exchange is kept with its price, so that no other object can reuse its parts' ids.
        key = (exchange.operation, id(exchange.group), id(exchange.num_bytes))
        if key not in known:
            sent = exchange.operation, cluster, c, exchange.group, exchange.num_bytes
            known[key] = exchange, collective_s(*sent)
        return known[key][1]

    return seconds


def left_over(taken: Array, hidden: Array, least: Array | float = LEAST_SHOWN) -> Array:
    """Exposed seconds of communication, of which ``hidden`` can hide; ``least`` always shows."""
    return np.maximum(taken - hidden, least * taken)


class Machine:
    """A cluster as a framework uses it, and the constants of its times."""

    def __init__(self, cluster: Cluster, framework: Framework, constants: TimeConstants) -> None:
        self.cluster, self.framework, self.constants = cluster, framework, constants
        self.compute = Compute(cluster, framework, constants)
        self.seconds = price(cluster, constants)

        # share of a computation that can hide communication
        self.overlap: Array | float = constants.share("overlap", cluster.overlap)


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer's passes on one micro-batch, by cause."""

    forward_backward: Array  # computation of both passes
    recompute: Array  # computation that the backward pass repeats
    # exposed communication of these three axes
    tensor: Array
    context: Array
    experts: Array
    offload: Array  # exposed copies of activations to the host and back
    launch: Array  # host time beyond all of these

    @property
    def passes(self) -> tuple[Array, Array]:
        """Seconds without communication: forward, and backward with recomputation."""
        alone = self.forward_backward + self.launch
        return (1 - _BACKWARD) * alone, _BACKWARD * alone + self.recompute

    @property
    def total(self) -> Array:
        sent = self.tensor + self.context + self.experts
        return self.forward_backward + self.recompute + sent + self.offload + self.launch


def layer(jobs: Jobs, machine: Machine) -> Layer:
    cluster, framework, c = machine.cluster, machine.framework, machine.constants
    forward = machine.compute.forward(jobs)
    backward = machine.compute.backward(jobs, forward)
    layout, passes = jobs.layout, np.where(jobs.repeats_layers, 2.0, 1.0)
    beside = _beside(jobs, forward, backward)
    least = 1.0 if cluster.is_cpu else c.exposed_fused
    exposed: dict[Cause, Array] = {cause: np.zeros(len(jobs)) for cause in get_args(Cause)}
    waited: dict[Pass, Array] = {"forward": np.zeros(len(jobs)), "backward": np.zeros(len(jobs))}
    calls_s = np.zeros(len(jobs))
    across = (layout.pp > 1) & (layout.world_size > cluster.domain_gpus)
    for name, axis in AXES.items():
        ranks = layout.axes.sizes[name]
        if not (ranks > 1).any():
            continue
        sent = axis.layer_exchanges(jobs, framework)
        shown = exposed_s(sent, machine.seconds, machine.overlap, beside, least)
        exposed[axis.cause] = exposed[axis.cause] + shown
        if axis.host_calls is not None:
            call = c.host_call_s + np.where(across, c.contended_call_s * ranks, 0.0)
            calls_s = calls_s + axis.host_calls(jobs, framework) * call
            whole: Array | float = 1.0
        else:  # what computation hides takes no time beside it
            taken = sum(_sum(sent, machine.seconds, each) for each in get_args(Pass))
            whole = shown / np.where(taken > 0, taken, 1.0)
        waited = {each: s + whole * _sum(sent, machine.seconds, each) for each, s in waited.items()}

    def host(times: PassTimes, within: Pass, launches: float = 1.0) -> Array:
        """Seconds of waiting for the host: long work of the device hides its launches."""
        device = times.device + waited[within]
        return smooth_max(device, times.launch + launches * calls_s) - device

    first, second = host(forward, "forward"), host(backward, "backward", BACKWARD_LAUNCHES)
    device = forward.device + backward.device
    again = _again(jobs, machine, forward)
    ways = forward.device, backward.device + again
    return Layer(
        forward_backward=device,
        recompute=again,
        tensor=exposed["tensor"],
        context=exposed["context"],
        experts=_dispatch_s(jobs, machine, device),
        offload=_offload_s(jobs, machine, ways),
        launch=first * passes + second,
    )


def _beside(jobs: Jobs, forward: PassTimes, backward: PassTimes) -> dict[Work | Pass, Array]:
    """Seconds of work that can hide exchanges; for a pass, of the operator that fuses them."""
    return {
        "products": forward.gemm + backward.gemm,
        "attention": np.where(jobs.repeats_core, 2.0, 1.0) * forward.attention,
        "attention_backward": backward.attention,
        "layer": np.where(jobs.repeats_layers, 2.0, 1.0) * forward.device,
        "layer_backward": backward.device,
        "forward": forward.gemm,
        "repeated": forward.gemm,
        "backward": forward.gemm / 2,  # input gradients of the row-parallel ones, about half
    }


def _again(jobs: Jobs, machine: Machine, forward: PassTimes) -> Array:
    """Seconds of a layer's forward pass that recomputation repeats."""
    products, moved = repeated_work(jobs, machine.framework)
    kept = ELEMENTWISE_AGAIN * forward.elementwise if machine.framework.keeps_products else 0.0
    some = np.where(repeats_attention(jobs, machine.framework), forward.attention, kept)
    some = some + products * forward.gemm + moved / machine.compute.memory_bytes_per_s
    some = np.where(jobs.options.recompute == SELECTIVE, some, 0.0)
    return np.where(jobs.repeats_layers, forward.device, some)


def _offload_s(jobs: Jobs, machine: Machine, passes: tuple[Array, Array]) -> Array:
    """Exposed seconds of offloading a layer's activations, behind another layer's forward pass, and
    of loading them, behind a backward pass. A CPU copies them itself, by reading and writing.
    """
    if not jobs.options.offload_activations.any():
        return np.zeros(len(jobs))
    kept_s = host_copy_s(machine, layer_bytes(jobs, machine.framework, jobs.options.recompute))
    if machine.cluster.is_cpu:
        shown = len(passes) * kept_s
    else:
        shown = np.add(*(left_over(kept_s, beside) for beside in passes))
    return np.where(jobs.options.offload_activations, shown, 0.0)


def host_copy_s(machine: Machine, num_bytes: Array) -> Array:
    """Seconds to copy bytes of one rank between its GPU and the host; on a CPU, within memory."""
    if machine.cluster.is_cpu:
        return np.asarray(2 * num_bytes / machine.compute.memory_bytes_per_s)
    rate = HOST_SHARE * 1e9 * (machine.cluster.host_link_gb_per_s or HOST_GB_PER_S)
    return np.asarray(num_bytes / rate)


def exposed_s(
    exchanges: Iterable[Exchange],
    seconds: Price,
    share: Array | float,
    beside: Mapping[Work | Pass, Array],
    least: Array | float,
) -> Array:
    """Seconds of a layer's exchanges that a ``share`` of its computation cannot hide.

    Fused ones hide behind products of their own pass, and at ``least`` a share of them is exposed.
    """
    taken: dict[Work | Pass, Array] = {}
    for one in exchanges:
        taken[one.behind] = taken.get(one.behind, 0.0) + (one.times - one.fused) * seconds(one)
        taken[one.within] = taken.get(one.within, 0.0) + one.fused * seconds(one)
    shown = taken.pop("", 0.0)
    for work, sent in taken.items():
        at_least = least if work in get_args(Pass) else LEAST_SHOWN
        shown = shown + left_over(sent, share * beside[work], at_least)
    return np.asarray(shown)


def _sum(exchanges: Iterable[Exchange], seconds: Price, within: Pass) -> Array:
    """Seconds of the exchanges of one pass."""
    return np.asarray(sum(one.times * seconds(one) for one in exchanges if one.within == within))


def _dispatch_s(jobs: Jobs, machine: Machine, device_s: Array) -> Array:
    """Exposed seconds of the experts' exchanges on one micro-batch; mean over all layers.

    Experts wait for their tokens unless they compute for another micro-batch meanwhile: both passes
    of a layer, ``device_s``.
    """
    mixture, seconds = jobs.model.mixture, machine.seconds
    if mixture is None:
        return np.zeros(len(jobs))
    sent = ep.layer_exchanges(
        jobs, machine.framework, mixture, lambda group: members_per_node(machine.cluster, group)
    )
    once = np.maximum(seconds(sent.inside), seconds(sent.across))
    ways = sent.plain.times * np.where(sent.once, once, seconds(sent.plain))
    alone = machine.constants.exposed_dispatch * ways
    left = left_over(ways, machine.overlap * device_s)
    shown = sent.hidden * np.minimum(left, alone) + (1 - sent.hidden) * alone
    split = sum(one.times * seconds(one) for one in sent.split)
    return np.asarray(ep.mixed_share(jobs, mixture) * (shown + split))
