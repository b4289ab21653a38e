"""Time of one training step, in parts.

The slowest pipeline stage sets the pace: m micro-batches of its layers' forward and backward
passes, with tensor parallelism's collectives among them. The other stages' passes fill and drain
the pipeline. Data parallelism's collectives, as far as they are exposed beside the backward pass,
and the optimizer follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost import collectives as links
from analysis.cost.constants import Parts, names
from analysis.cost.layer import Layer, Machine, layer
from analysis.cost.stages import stage_layers
from analysis.cost.state_exchanges import exposed_state_s, update_s
from analysis.cost.state_memory import as_run
from analysis.cost.time_constants import TimeConstants
from search_spaces import Cluster, Framework
from trainer.plan.axes import pp
from trainer.plan.jobs import Array, Jobs


@dataclass(frozen=True)
class StepParts(Parts):
    """Seconds of one step, as the slowest stage spends them; columns of shape (n,)."""

    forward_backward: Array  # of all micro-batches, without the parts below
    recompute: Array  # forward passes, or attention cores, that are computed again
    tensor: Array  # collectives of tensor parallelism
    context: Array  # keys and values of context parallelism, as far as attention does not hide them
    experts: Array  # sending tokens to their experts and back
    offload: Array  # activations on their way to the host's memory and back, likewise
    launch: Array  # waiting for the host
    head: Array  # output layer and loss, where it is on the slowest stage
    pipeline: Array  # handing activations and their gradients on
    crowded: Array  # waiting on a congested network, if the run is expected to meet one
    bubble: Array  # filling and draining the pipeline
    gather: Array  # exposed time of gathering sharded weights
    gradients: Array  # exposed time of reducing them
    publish: Array  # exposed time of gathering updated weights
    optimizer: Array  # its update
    fixed: Array  # of the host, once a step


def step(
    jobs: Jobs,
    cluster: Cluster,
    framework: Framework,
    constants: TimeConstants | None = None,
    crowded: Array | float = 0.0,
) -> StepParts:
    """Seconds of one step of every job, by cause.

    Where several ranks share a processor, a waiting rank leaves it to the others: the step takes
    the time of all their work, or of the longest path at the speed of a rank alone, if that is
    longer.

    ``crowded`` has shape (n,): 1 for runs on a congested network, 0 on a calm one.
    """
    c, jobs = constants or TimeConstants(), as_run(jobs, framework)
    machine = Machine(cluster, framework, c)
    one = layer(jobs, machine)
    head = np.add(*machine.compute.head(jobs))
    dealt = stage_layers(jobs, framework)
    m, p = jobs.layout.gas, jobs.layout.pp
    slow_is_last = (dealt.last * one.total + head >= dealt.most * one.total) | (p == 1)
    count = np.where(slow_is_last, dealt.last, dealt.most)
    on_slowest = np.where(slow_is_last, head, 0.0)
    slowest = count * one.total + on_slowest
    everything = jobs.model.num_layers * one.total + head
    path = _path_s(jobs, slowest, everything)
    # Where ranks share processors, nothing is lost as long as enough of them are busy.
    alone = cluster.shared_by
    used = np.maximum(m * everything / p, path / alone) / path if alone > 1 else 1.0
    # The fullest stage's states hide behind its own layers, however few the slowest one has.
    forward, backward = (np.maximum(count, dealt.most) * each for each in one.passes)
    states = exposed_state_s(jobs, machine, forward, backward)
    return StepParts(
        **{name: m * count * getattr(one, name) * used for name in names(Layer)},
        head=m * on_slowest * used,
        pipeline=pp.rounds(jobs) * _sends(jobs, machine),
        crowded=crowded_s(jobs, c) * crowded,
        bubble=(path - m * slowest) * used,
        **states,
        optimizer=update_s(jobs, machine),
        fixed=c.step_s + np.zeros(len(jobs)),
    )


def _path_s(jobs: Jobs, slowest: Array, everything: Array) -> Array:
    """Seconds of all passes on the slowest stage with the pipeline's bubble.

    ``m a + (sum of all stages - a) / v`` with a the slowest stage's time for one micro-batch: 1F1B
    and its interleaved form (Narayanan et al. 2021, section 2.2; for equal stages the bubble is
    their (p - 1) / (v m)), and breadth-first (Lamy-Poirier 2022). Weight gradients that are
    computed apart (zero-bubble schedules) fill a part of it.

    ``slowest`` and ``everything`` are seconds of one micro-batch on that stage and on all.
    """
    m, v = jobs.layout.gas, jobs.layout.vpp
    path = m * slowest + np.maximum(everything - slowest, 0) / v * pp.idle_share(jobs)
    return path + pp.unfilled_turns(jobs) * slowest / v


def _sends(jobs: Jobs, machine: Machine) -> Array:
    """Seconds that a stage waits for its neighbours per micro-batch, sending and receiving."""
    sent, c = pp.message(jobs, machine.framework), machine.constants
    one = links.send_s(machine.cluster, c, sent.group.stride, sent.num_bytes, sent.group.size)
    return pp.neighbours(jobs) * (c.exposed_sends * one + c.send_s)


def crowded_s(jobs: Jobs, c: TimeConstants) -> Array:
    """Seconds by which a congested network makes a step longer."""
    neighbours = np.where(jobs.layout.pp > 1, pp.neighbours(jobs), 2.0)
    return pp.rounds(jobs) * neighbours * c.crowded_send_s
