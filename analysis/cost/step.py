"""Time of one training step, in parts.

The slowest pipeline stage sets the pace: m micro-batches of its layers' forward and backward
passes, with tensor parallelism's collectives among them; the other stages' passes are what fills
and drains the pipeline; data parallelism's collectives and the optimizer follow, as far as they do
not hide behind the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from analysis.cost import collectives as links
from analysis.cost.collectives import LinkConstants, one_adapter
from analysis.cost.compute import Compute, ComputeConstants, PassTimes, smooth_max
from analysis.cost.constants import Constants, constant
from analysis.cost.experts import (
    as_experts_are_held,
    assigned_tokens,
    dispatched_bytes,
    mixed_share,
)
from analysis.cost.groups import RankGroup, along
from analysis.cost.jobs import FULL, SELECTIVE, Array, Jobs, Mask
from analysis.cost.stages import stage_layers
from analysis.cost.traffic import (
    activation_bytes,
    expert_parameters,
    key_value_bytes,
    reduces_every_time,
    splits_sequence,
    stage_parameters,
    state_exchanges,
)
from search_spaces import Cluster, Framework
from trainer import LAYER_GATHERS, LAYER_SUMS

_TIMED = {
    "all_gather": links.all_gather_s,
    "reduce_scatter": links.reduce_scatter_s,
    "all_reduce": links.all_reduce_s,
}


@dataclass(frozen=True)
class OverlapConstants(Constants):
    """What happens at once, and what a program adds of its own."""

    overlap: float = constant(0.6, 0.3, "of the backward pass that can hide data parallelism")
    host_call_s: float = constant(5e-5, 0.7, "of the host, to start one collective of a layer")
    contended_call_s: float = constant(
        1e-5, 1.5, "more for each member of it, where a pipeline's sends cross nodes as well"
    )
    exposed_sends: float = constant(0.3, 0.7, "of a send's transfer, that does not hide")
    send_s: float = constant(1e-4, 2.0, "of the host, to hand a micro-batch to another stage")
    crowded_send_s: float = constant(
        1e-4, 3.0, "more of a send in jobs far beyond 64 nodes; at 64 half of it"
    )
    exposed_dispatch: float = constant(
        0.8, 0.4, "of the time in which tokens are on their way to experts and back"
    )
    update: float = constant(1.5, 0.5, "of the memory traffic that a fused optimizer would have")
    step_s: float = constant(0.02, 1.0, "of the host, once a step")


@dataclass(frozen=True)
class TimeConstants(ComputeConstants, LinkConstants, OverlapConstants):
    """All constants of time, in one record."""


def without_effect(jobs: Jobs) -> Mask:
    """Which of time's constants, in their order, say nothing of these jobs."""
    unused = set() if jobs.mixture is not None else {*_OF_EXPERTS}
    if not jobs.fp8.any():
        unused.add("fp8_share")
    return np.array([f.name in unused for f in fields(TimeConstants)])


_OF_EXPERTS = ("expert_share", "permuted_copies", "exposed_dispatch")


@dataclass(frozen=True)
class StepParts:
    """Seconds of one step, as the slowest stage spends them; columns of shape (n,).

    Attributes:
        forward_backward: of all micro-batches, without the following.
        recompute: forward passes, or attention cores, that are computed again.
        tensor: collectives of tensor parallelism.
        context: keys and values of context parallelism, as far as attention does not hide them.
        experts: sending tokens to their experts and back.
        launch: waiting for the host.
        head: output layer and loss, where it is on the slowest stage.
        pipeline: handing activations and their gradients on.
        bubble: filling and draining the pipeline.
        gather: of split weights, as far as it does not hide.
        gradients: their reduction, as far as it does not hide.
        publish: of updated weights.
        optimizer: its update.
        fixed: once a step.
    """

    forward_backward: Array
    recompute: Array
    tensor: Array
    context: Array
    experts: Array
    launch: Array
    head: Array
    pipeline: Array
    bubble: Array
    gather: Array
    gradients: Array
    publish: Array
    optimizer: Array
    fixed: Array

    @property
    def total(self) -> Array:
        return np.asarray(sum(self.as_dict().values()))

    def as_dict(self) -> dict[str, Array]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class _Layer:
    """Seconds of one layer's passes on one micro-batch, by cause."""

    device: Array
    again: Array
    tensor: Array
    context: Array
    experts: Array
    launch: Array
    """What the host takes beyond all of these."""

    @property
    def total(self) -> Array:
        sent = self.tensor + self.context + self.experts
        return self.device + self.again + sent + self.launch


def step(
    jobs: Jobs, cluster: Cluster, framework: Framework, constants: TimeConstants | None = None
) -> StepParts:
    """Seconds of one step of every job, by cause.

    Pipeline: ``m a + (sum of all stages - a) / v`` with a the slowest stage's time of one
    micro-batch: 1F1B and its interleaved form (Narayanan et al. 2021, section 2.2; for equal
    stages the bubble is their (p - 1) / (v m)). Where several ranks share a processor, a rank that
    waits slows the others down no longer: the step takes the time of all their work, or of the
    longest path at the speed of a rank alone, if that is longer.
    """
    c = constants or TimeConstants()
    compute = Compute(cluster, framework, c)
    layer = _layer(jobs, cluster, framework, compute, c)
    head_forward, head_backward = compute.head(jobs)
    head = head_forward + head_backward
    dealt = stage_layers(jobs, framework)
    m, p, v = jobs.gas, jobs.pp, jobs.vpp
    ends = dealt.last * layer.total + head
    inner = dealt.most * layer.total
    slow_is_last = (ends >= inner) | (p == 1)
    count = np.where(slow_is_last, dealt.last, dealt.most)
    on_slowest = np.where(slow_is_last, head, 0.0)
    slowest = count * layer.total + on_slowest
    everything = jobs.num_layers * layer.total + head
    sends = _sends(jobs, cluster, framework, c)
    alone = cluster.shared_by
    path = m * slowest + np.maximum(everything - slowest, 0) / v
    # Where ranks share processors, nothing is lost as long as enough of them are busy.
    used = np.maximum(m * everything / p, path / alone) / path if alone > 1 else 1.0
    window = count * layer.device * 2 / 3
    data = _data(jobs, cluster, framework, c, window, slowest)
    return StepParts(
        forward_backward=m * count * layer.device * used,
        recompute=m * count * layer.again * used,
        tensor=m * count * layer.tensor * used,
        context=m * count * layer.context * used,
        experts=m * count * layer.experts * used,
        launch=m * count * layer.launch * used,
        head=m * on_slowest * used,
        pipeline=(m * v + p - 1) * sends,
        bubble=(path - m * slowest) * used,
        gather=data[0],
        gradients=data[1],
        publish=data[2],
        optimizer=_update(jobs, compute, c),
        fixed=c.step_s + np.zeros(len(jobs)),
    )


def _layer(
    jobs: Jobs, cluster: Cluster, framework: Framework, compute: Compute, c: TimeConstants
) -> _Layer:
    """Both passes of one layer."""
    forward = compute.forward(jobs)
    backward = compute.backward(jobs, forward)
    one_sum, extra = _tensor(jobs, cluster, framework, c)
    full = jobs.recompute == FULL
    calls = np.where(jobs.tp > 1, 2.0, 0.0) * np.where(extra > 0, 2.0, 1.0)
    across = (jobs.pp > 1) & (jobs.world_size > cluster.domain_gpus)
    call = c.host_call_s + np.where(across, c.contended_call_s * jobs.tp, 0.0)
    first = _host(forward, 2 * one_sum, calls * call)
    second = _host(backward, 2 * one_sum + extra, 1.5 * calls * call)
    sums = LAYER_SUMS * one_sum + extra + np.where(full, framework.repeated_sums * one_sum, 0.0)
    if framework.overlaps_tensor:
        hidden = c.overlap * (forward.gemm + backward.gemm)
        sums = np.maximum(sums - hidden, 0.05 * sums)
    again = np.where(full, forward.device, 0.0)
    again = again + np.where(jobs.recompute == SELECTIVE, forward.attention, 0.0)
    return _Layer(
        device=forward.device + backward.device,
        again=again,
        tensor=sums,
        context=_context(jobs, cluster, c, forward, backward),
        experts=_experts(jobs, cluster, framework, c),
        launch=first * np.where(full, 2.0, 1.0) + second,
    )


def _context(
    jobs: Jobs, cluster: Cluster, c: TimeConstants, forward: PassTimes, backward: PassTimes
) -> Array:
    """Exposed seconds of one layer's keys and values on one micro-batch.

    Each pass brings them to every rank, and the backward pass returns their gradients. Blocks of
    them come while attention works on those before (Liu et al. 2023).
    """
    group, num_bytes = along(jobs.axes, "cp"), key_value_bytes(jobs)
    gather = links.all_gather_s(cluster, c, group, num_bytes)
    scatter = links.reduce_scatter_s(cluster, c, group, num_bytes)
    first = np.maximum(gather - c.overlap * forward.attention, 0.05 * gather)
    both = gather + scatter
    second = np.maximum(both - c.overlap * backward.attention, 0.05 * both)
    times = np.where(jobs.recompute > 0, 2.0, 1.0)  # attention is what either kind repeats
    return np.asarray(np.where(jobs.cp > 1, times * first + second, 0.0))


def _experts(jobs: Jobs, cluster: Cluster, framework: Framework, c: TimeConstants) -> Array:
    """Exposed seconds of one layer's tokens on their way to experts and back, in the mean.

    Each pass has an all-to-all there and one back over the ranks of expert parallelism, which the
    experts wait for, and gathers and sums over the ranks that split an expert (Megatron Core,
    "Mixture of Experts"). In the order of ranks ``etp`` is innermost, then ``ep``.
    """
    mixture = jobs.mixture
    if mixture is None:
        return np.zeros(len(jobs))
    world = jobs.world_size
    sent = dispatched_bytes(jobs, mixture, framework.sends_tokens_once)
    way = links.all_to_all_s(cluster, c, RankGroup(jobs.ep, jobs.etp, world), sent)
    split = RankGroup(jobs.etp, np.ones(len(jobs)), world)
    rows = assigned_tokens(jobs, mixture) * jobs.hidden_size * jobs.element_bytes
    gather = links.all_gather_s(cluster, c, split, rows)
    scatter = links.reduce_scatter_s(cluster, c, split, rows)
    way, inner = np.where(jobs.ep > 1, way, 0.0), np.where(jobs.etp > 1, gather + scatter, 0.0)
    passes = 2 + np.where(jobs.recompute == FULL, 1.0, 0.0)
    return np.asarray(mixed_share(jobs, mixture) * passes * (2 * c.exposed_dispatch * way + inner))


def _host(times: PassTimes, communication: Array, calls_s: Array) -> Array:
    """What a pass waits for the host: launching hides behind the device's work, if that is long."""
    device = times.device + communication
    return smooth_max(device, times.launch + calls_s) - device


def _tensor(
    jobs: Jobs, cluster: Cluster, framework: Framework, c: TimeConstants
) -> tuple[Array, Array]:
    """One sum of activations over the tensor-parallel ranks, and a backward pass's further gathers.

    A layer sums twice in each pass (Shoeybi et al. 2019). With sequence parallelism each sum is a
    reduce-scatter and a gathering (Korthikanti et al. 2022), and the backward pass gathers the
    inputs of the two products that are split by columns again.
    """
    group = along(jobs.axes, "tp")
    num_bytes, parallel = activation_bytes(jobs), splits_sequence(jobs, framework)
    gather = links.all_gather_s(cluster, c, group, num_bytes)
    scatter = links.reduce_scatter_s(cluster, c, group, num_bytes)
    whole = links.all_reduce_s(cluster, c, group, num_bytes)
    one = np.where(parallel, gather + scatter, whole)
    return one, np.where(parallel, (LAYER_GATHERS - LAYER_SUMS) * gather, 0.0)


def _sends(jobs: Jobs, cluster: Cluster, framework: Framework, c: TimeConstants) -> Array:
    """What a stage waits for its neighbours in one micro-batch: activations and their gradients.

    A stage sends activations to a neighbour as it receives their gradients from it, at once. One in
    the middle has two neighbours, in a pipeline of two each has one.
    """
    share = np.where(splits_sequence(jobs, framework), jobs.tp, 1.0)
    num_bytes = activation_bytes(jobs) / share
    one = links.send_s(cluster, c, jobs.axes.stride("pp"), num_bytes, jobs.pp)
    nodes = jobs.world_size / cluster.gpus_per_node
    # A switch rather than a slope: large jobs meet a disturbed network, small ones hardly ever.
    host = c.send_s + c.crowded_send_s / (1 + (64 / nodes) ** 6)
    return np.minimum(jobs.pp - 1, 2) * (c.exposed_sends * one + host)


def _data(
    jobs: Jobs,
    cluster: Cluster,
    framework: Framework,
    c: TimeConstants,
    window: Array,
    micro: Array,
) -> tuple[Array, Array, Array]:
    """Exposed seconds of gathering weights, reducing gradients and publishing weights.

    Args:
        window: backward pass of one micro-batch on the slowest stage.
        micro: both passes of it.
    """
    once_layer = one_adapter(cluster) if framework.one_adapter else cluster
    # Split weights and gradients come and go layer by layer, and each call has its latency.
    units = stage_layers(jobs, framework).most + 1
    exchanges = [state_exchanges(jobs, framework)]
    if jobs.mixture is not None:
        experts = expert_parameters(jobs, framework)
        exchanges.append(state_exchanges(as_experts_are_held(jobs), framework, experts))

    def seconds(name: str, by_layer: bool = False, *, each: bool = True) -> Array | float:
        """Of one kind of exchange: all in a step, or once."""
        found: Array | float = 0.0
        for exchange in (getattr(one, name) for one in exchanges):
            calls = units if by_layer else 1.0
            over = once_layer if by_layer else cluster
            timed = _TIMED[exchange.operation]
            taken = calls * timed(over, c, exchange.group, exchange.num_bytes / calls)
            found = found + (exchange.times * taken if each else taken)
        return found

    # Split weights are gathered before each pass of a micro-batch, later from a copy if there is.
    gathers = np.asarray(seconds("weights", True) + seconds("secondary", True))
    gathers = np.maximum(gathers - c.overlap * jobs.gas * micro, 0.05 * gathers)

    # Split gradients are reduced in every micro-batch, then once a step over what is left.
    inner = np.asarray(seconds("gradients", True, each=False))
    once = np.asarray(seconds("gradient_scatter") + seconds("gradient_sum"))
    overlaps = np.where(
        jobs.optimizer_shard > 1,
        framework.overlaps_gradients and framework.overlaps_split_gradients,
        framework.overlaps_gradients,
    )
    hidden = c.overlap * window * overlaps
    per_micro = np.maximum(inner - hidden, 0.05 * inner) * jobs.gas
    every = reduces_every_time(jobs, framework)
    once = np.where(every, once, np.maximum(once - hidden, 0.05 * once))
    return gathers, per_micro + once, np.asarray(seconds("publish"))


def _update(jobs: Jobs, compute: Compute, c: TimeConstants) -> Array:
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
