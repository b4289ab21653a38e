"""Training states in a step: parameters on a rank, data parallelism's collectives, the update.

The collectives are those of ``trainer.plan.axes.dp``, for each class of parameters that has holders
of its own: dense ones, and experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.cost import state_memory, tuning
from analysis.cost.compute import Compute
from analysis.cost.groups import crosses_nodes, one_adapter
from analysis.cost.layer import LEAST_SHOWN, Machine, host_copy_s, left_over, price
from analysis.cost.stages import SPLIT, kept_by, stage_layers
from search_spaces import Framework
from trainer.plan.axes import dp, ep
from trainer.plan.exchange import Exchange
from trainer.plan.jobs import Array, Jobs

CPU_ADAM_BYTES_PER_S = 120e9
"""Memory traffic of a node in DeepSpeed's CPU-Adam. Assumed: 30 bytes of each of 10^9 parameters in
0.25 s, as two sockets of 2018 reach; ``host_update`` learns the rest."""

_OF_WEIGHTS = ("weights", "secondary")  # exchanges that frozen weights take part in


def fullest_parameters(jobs: Jobs, framework: Framework) -> tuple[Array, Array]:
    """Dense parameters and experts of the fullest stage, on one of its ranks."""
    dealt, alone = stage_layers(jobs, framework), jobs.layout.pp == 1
    # With a pipeline the first stage has the embedding, and the last one the output layer.
    both = (alone & ~jobs.model.tied_embeddings) | jobs.folded
    ends = np.maximum(dealt.first, dealt.last)
    # Dense layers are on the first of several stages, which therefore is not the fullest.
    with_table, _ = ep.rank_parameters(jobs, ends, np.where(both, 2.0, 1.0), alone)
    inner, _ = ep.rank_parameters(jobs, dealt.inner, 0.0, alone)
    _, experts = ep.rank_parameters(jobs, np.maximum(dealt.most, dealt.last), 0.0, alone)
    return np.maximum(with_table, inner), experts


@kept_by(*SPLIT)
def held_parameters(jobs: Jobs, framework: Framework) -> list[tuple[Array, dp.Holders]]:
    """Each class of the fullest stage's parameters on one rank, with its holders."""
    return [*zip(fullest_parameters(jobs, framework), ep.all_holders(jobs), strict=False)]


def exposed_state_s(
    jobs: Jobs, machine: Machine, forward: Array, backward: Array
) -> dict[str, Array]:
    """Exposed seconds of a step's ``gather`` and ``publish`` of weights, and of its ``gradients``.

    During a layer's pass the next layer's weights are gathered and the previous one's gradients
    reduced: an exchange hides only behind that pass, and shares it with others on its links.

    ``forward`` and ``backward``: one micro-batch's passes on the slowest stage; GPU seconds.
    """
    cluster, framework, c = machine.cluster, machine.framework, machine.constants
    whole = machine.seconds
    by_layer = price(one_adapter(cluster), c) if framework.one_adapter else whole
    held = held_parameters(jobs, framework)
    sent = [
        _of_trained(dp.job_exchanges(jobs, framework, holders, weights), jobs, framework)
        for weights, holders in held
    ]
    # Sharded weights and gradients are exchanged layer by layer, each call with its latency, except
    # gradients in flat buckets.
    units = stage_layers(jobs, framework).most + 1
    flat = dp.in_buckets(jobs, framework, held[0][1])
    forward, backward = machine.overlap * forward, machine.overlap * backward

    def in_calls(exchange: Exchange, calls: Array) -> Array:
        return calls * by_layer(replace(exchange, num_bytes=exchange.num_bytes / calls))

    # Sharded weights are gathered before each pass of a micro-batch, later from a copy if any.
    stored = np.asarray(sum(in_calls(s.weights, units) for s in sent))
    copied = np.asarray(sum(in_calls(s.secondary, units) for s in sent))
    has_copy, gas = jobs.placement.secondary_shard > 0, jobs.layout.gas
    nearest = np.where(has_copy, copied, stored)
    from_stored, from_copy = dp.job_gathers(jobs)
    gather = np.where(has_copy, from_stored, gas) * left_over(stored, forward)
    gather = gather + np.where(has_copy, from_copy - gas, 0.0) * left_over(copied, forward)
    gather = gather + gas * left_over(nearest, backward)

    # Sharded gradients are reduced per micro-batch or once; then once over the remaining ranks.
    calls = np.where(flat, 1.0, units)
    inner = np.asarray(sum(in_calls(s.gradients, calls) for s in sent))
    rest = [one for s in sent for one in (s.gradient_scatter, s.gradient_sum)]
    once = np.asarray(sum(one.times * whole(one) for one in rest))
    split = jobs.placement.optimizer_shard > 1
    overlaps = framework.overlaps_gradients & (framework.overlaps_split_gradients | ~split)
    between = [crosses_nodes(cluster, s.group) for s in (sent[0].weights, sent[0].secondary)]
    between_nodes = np.where(has_copy, between[1], between[0])
    alike = between_nodes == crosses_nodes(cluster, sent[0].gradients.group)
    left = backward - np.where(alike, np.minimum(nearest, backward), 0.0)
    gradients = left_over(inner, left * overlaps) * jobs.reductions
    every = dp.reduces_every_time(jobs, framework, held[0][1])
    gradients = gradients + np.where(every, once, left_over(once, backward * overlaps))

    # Whole weights are used as they arrive, in the first forward pass of the next step.
    publish = np.asarray(sum(s.publish.times * whole(s.publish) for s in sent))
    arrives = framework.overlaps_publish & flat & (jobs.layout.gy * jobs.layout.gz == 1)
    shown = np.where(arrives, LEAST_SHOWN, 1.0) * publish
    publish = np.maximum(publish - forward * arrives, shown)
    if framework.owners_send:
        owners = np.where(jobs.placement.weight_shard == 1, jobs.placement.optimizer_shard - 1, 0.0)
        publish = publish + c.owner_s * owners
    exposed = {"gather": gather, "gradients": gradients, "publish": publish}
    for more in (
        _converting_s(jobs, sent, machine.compute),
        _host_copies_s(jobs, machine, held, forward, backward),
    ):
        exposed |= {name: exposed[name] + seconds for name, seconds in more.items()}
    return exposed


def _converting_s(jobs: Jobs, sent: list[dp.StateExchanges], compute: Compute) -> dict[str, Array]:
    """Seconds of a step in which the numbers of quantized exchanges are converted.

    No computation hides them, as they need the GPU themselves. Quantizing and dequantizing each
    take about as long as a copy of the unquantized numbers (docs/results/training.md). Gathered
    numbers are dequantized; what is quantized before is a rank's share. Both sides of a reduction
    convert all of them.
    """
    wide, placement = jobs.options.element_bytes, jobs.placement

    def copies_s(exchange: Exchange, bits: Array) -> Array:
        narrow = (bits > 0) & (bits < 8 * wide) & (np.asarray(exchange.group.size) > 1)
        numbers = exchange.times * exchange.num_bytes * 8 / np.where(narrow, bits, 1)
        return np.where(narrow, 2 * wide * numbers / compute.memory_bytes_per_s, 0.0)

    weights, copy, reduced = placement.gather_bits, placement.secondary_bits, placement.reduce_bits
    found = {
        "gather": [copies_s(s.weights, weights) + copies_s(s.secondary, copy) for s in sent],
        "gradients": [
            2 * copies_s(one, reduced) for s in sent for one in (s.gradients, s.gradient_scatter)
        ],
        "publish": [copies_s(s.publish, weights) for s in sent],
    }
    return {name: np.asarray(sum(seconds)) for name, seconds in found.items()}


def _of_trained(sent: dp.StateExchanges, jobs: Jobs, framework: Framework) -> dp.StateExchanges:
    """The exchanges with frozen weights, which have no gradients and may travel quantized."""
    if not tuning.freezes(jobs).any():
        return sent
    trained, stored = tuning.trained_share(jobs), tuning.gathered_share(jobs, framework)
    scaled = (
        replace(one, num_bytes=one.num_bytes * (stored if name in _OF_WEIGHTS else trained))
        for name, one in sent._asdict().items()
    )
    return dp.StateExchanges(*scaled)


def update_bytes(jobs: Jobs, framework: Framework) -> tuple[Array, Array]:
    """Bytes that AdamW moves: per weight of a rank's share, master weight and two moments are read
    and written, the gradient read, the weight written; then all gradients are cleared and scaled.
    """
    share: Array | float = 0.0
    whole: Array | float = 0.0
    states = 2 * framework.master_bytes + 4 * framework.moment_bytes
    for weights, holders in held_parameters(jobs, framework):
        degrees, trained = holders.placement, weights * tuning.trained_share(jobs)
        share = share + trained * (states + 4 + 2) / degrees.optimizer_shard
        whole = whole + trained * 8 / degrees.gradient_shard
    return np.asarray(share), np.asarray(whole)


def update_s(jobs: Jobs, machine: Machine) -> Array:
    """Seconds of AdamW."""
    share, whole = update_bytes(jobs, machine.framework)
    on_device = machine.constants.update * (share + whole) / machine.compute.memory_bytes_per_s
    on_host = state_memory.updates_on_host(jobs, machine.framework)
    if not on_host.any():
        return np.asarray(on_device)
    return np.where(on_host, _host_update_s(jobs, machine, share), on_device)


def _host_update_s(jobs: Jobs, machine: Machine, moved: Array) -> Array:
    """Seconds in which a node's processors update the shares of all of its ranks.

    ``moved``: bytes that one rank's update reads and writes.
    """
    everything = state_memory.ranks_of_node(jobs, machine.cluster) * moved
    return np.asarray(machine.constants.host_update * everything / CPU_ADAM_BYTES_PER_S)


def _host_copies_s(
    jobs: Jobs,
    machine: Machine,
    held: Sequence[tuple[Array, dp.Holders]],
    forward: Array,
    backward: Array,
) -> dict[str, Array]:
    """Exposed seconds of a step's copies between GPU and host, under the parts they belong to.

    Weights are loaded ahead of each pass, and split gradients leave during the backward pass. The
    other copies wait for the last gradient, or for the update.

    Args:
        held: parameters on a rank before sharding, with their holders.
        forward, backward: computation of one micro-batch that can hide copies; GPU seconds.
    """
    gone = state_memory.updates_on_host(jobs, machine.framework)
    loads = state_memory.loads_weights(jobs)
    if not (gone | loads).any():
        return {}
    framework, gas = machine.framework, jobs.layout.gas
    masters = framework.master_bytes if framework.sharded_masters else 0.0
    each = np.maximum(jobs.options.element_bytes, masters)

    def copied_s(degree: str) -> Array:
        shares = [weights / getattr(holders.placement, degree) for weights, holders in held]
        return host_copy_s(machine, each * np.asarray(sum(shares)))

    trained, split = tuning.trained_share(jobs), state_memory.splits_gradients(jobs)
    stored, updated = copied_s("weight_shard"), trained * copied_s("optimizer_shard")
    gather = gas * (left_over(stored, forward) + left_over(stored, backward))
    reduced = gas * left_over(trained * copied_s("gradient_shard"), backward)
    return {
        "gather": np.where(loads, gather, 0.0),
        "gradients": np.where(gone, np.where(split, reduced, updated), 0.0),
        "publish": np.where(gone != loads, updated, 0.0),
    }
