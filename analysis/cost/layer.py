"""Time of one transformer layer's passes on one micro-batch, by cause.

What ``compute`` times on one GPU, and the collectives of tensor, context and expert parallelism
among it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost import collectives as links, grid
from analysis.cost.activations import repeats_attention
from analysis.cost.compute import Compute, PassTimes, smooth_max
from analysis.cost.dispatch import dispatch_s
from analysis.cost.groups import along
from analysis.cost.jobs import FULL, SELECTIVE, STEP_GRAPHS, Array, Jobs
from analysis.cost.time_constants import TimeConstants
from analysis.cost.traffic import activation_bytes, key_value_bytes, splits_sequence
from search_spaces import Cluster, Framework
from trainer.plan.sizes import LAYER_GATHERS, LAYER_SUMS


@dataclass(frozen=True)
class Layer:
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


def layer(
    jobs: Jobs, cluster: Cluster, framework: Framework, compute: Compute, c: TimeConstants
) -> Layer:
    """Both passes of one layer."""
    forward = compute.forward(jobs)
    backward = compute.backward(jobs, forward)
    one_sum, extra = _tensor(jobs, cluster, framework, c)
    full = jobs.recompute == FULL
    by_host = (jobs.tp > 1) & (jobs.graphs != STEP_GRAPHS)
    calls = np.where(by_host, 2.0, 0.0) * np.where(extra > 0, 2.0, 1.0)
    across = (jobs.pp > 1) & (jobs.world_size > cluster.domain_gpus)
    call = c.host_call_s + np.where(across, c.contended_call_s * jobs.tp, 0.0)
    first = _host(forward, 2 * one_sum, calls * call)
    second = _host(backward, 2 * one_sum + extra, 1.5 * calls * call)
    sums = LAYER_SUMS * one_sum + extra + np.where(full, framework.repeated_sums * one_sum, 0.0)
    if framework.overlaps_tensor:
        hidden = c.overlap * (forward.gemm + backward.gemm)
        sums = np.maximum(sums - hidden, 0.05 * sums)
    sums = sums + grid.layer_s(jobs, cluster, framework, c, forward, backward)
    again = np.where(full, forward.device, 0.0)
    some = np.where(repeats_attention(jobs, framework), forward.attention, forward.elementwise)
    again = again + np.where(jobs.recompute == SELECTIVE, some, 0.0)
    return Layer(
        device=forward.device + backward.device,
        again=again,
        tensor=sums,
        context=_context(jobs, cluster, c, forward, backward),
        experts=dispatch_s(jobs, cluster, framework, c, forward.device + backward.device),
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
