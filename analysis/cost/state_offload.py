"""Training states in the host's memory: what a GPU no longer holds, and what that costs in time.

ZeRO-Offload (Ren et al. 2021) keeps the optimizer's states on the host, which updates them: each
step sends a rank's gradients down and its new weights up. With weights on the host too, as in
ZeRO-Infinity (Rajbhandari et al. 2021) and FSDP's CPU offloading, every pass loads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.cost import tuning
from analysis.cost.layer import Machine, host_copy_s, left_over
from search_spaces import Cluster, Framework
from trainer.plan.axes.dp import Holders
from trainer.plan.jobs import Array, Jobs, Mask

CPU_ADAM_BYTES_PER_S = 120e9
"""Memory traffic of a node in DeepSpeed's CPU-Adam: 30 bytes of each of 10^9 parameters in 0.25 s
on two Xeon 8168 (Ren et al. 2021, table 4)."""

HOST_PROCESS_BYTES = 4.0 * 2**30
"""Of a rank's process on the host: libraries, the driver's context, loaded data."""
HOST_LOG_SD = 0.15  # of what a node's ranks need there
_COLUMNS = "offload_optimizer", "offload_parameters"


def loads_weights(jobs: Jobs) -> Mask:
    """Whether weights are in the host's memory between the passes of their layers."""
    return np.asarray(jobs.options.offload_parameters != 0)


def updates_on_host(jobs: Jobs, framework: Framework) -> Mask:
    """Whether optimizer states are there: with the weights, if these are the master weights."""
    one_copy = framework.sharded_masters or framework.master_bytes == 0
    both = loads_weights(jobs) & one_copy
    return np.asarray((jobs.options.offload_optimizer != 0) | both)


def kept_on_device(jobs: Jobs) -> Jobs:
    """The same jobs with all states on the GPUs."""
    none = dict.fromkeys(_COLUMNS, np.zeros(len(jobs)))
    options = replace(jobs.options, further={**jobs.options.further, **none})
    return replace(jobs, options=options)


def fits_host(held: Array, jobs: Jobs, cluster: Cluster) -> Array:
    """Probability that a node's memory holds what its ranks offload, ``held`` bytes each.

    1 where they offload nothing, or the cluster states no ``host_memory_gib``.
    """
    if cluster.host_memory_gib is None or not held.any():
        return np.ones(len(jobs))
    from scipy.special import ndtr  # slow to import, and a space is checked without it

    needed = _ranks_of_node(jobs, cluster) * (held + HOST_PROCESS_BYTES)
    margin = np.log(cluster.host_memory_gib * 2**30 / needed)
    return np.where(held > 0, ndtr(margin / HOST_LOG_SD), 1.0)


def _ranks_of_node(jobs: Jobs, cluster: Cluster) -> Array:
    return np.minimum(jobs.layout.world_size, cluster.gpus_per_node)


def on_device(
    states: dict[str, Array], jobs: Jobs, framework: Framework, gradient_shard: Array
) -> dict[str, Array]:
    """Bytes of states that stay on a GPU.

    Split gradients go to the host as they are reduced; whole ones are summed on the GPU.
    """
    gone, loads = updates_on_host(jobs, framework), loads_weights(jobs)
    if not (gone | loads).any():
        return states
    gone_by_state = {"weights": loads, "gradients": gone & (gradient_shard > 1), "optimizer": gone}
    return states | {name: np.where(g, 0.0, states[name]) for name, g in gone_by_state.items()}


def update_s(jobs: Jobs, machine: Machine, moved: Array) -> Array:
    """Seconds in which a node's processors update the shares of all of its ranks.

    ``moved``: bytes that one rank's update reads and writes.
    """
    everything = _ranks_of_node(jobs, machine.cluster) * moved
    return np.asarray(machine.constants.host_update * everything / CPU_ADAM_BYTES_PER_S)


def exposed_copies_s(
    jobs: Jobs,
    machine: Machine,
    held: Sequence[tuple[Array, Holders]],
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
    gone, loads = updates_on_host(jobs, machine.framework), loads_weights(jobs)
    if not (gone | loads).any():
        return {}
    framework, gas = machine.framework, jobs.layout.gas
    masters = framework.master_bytes if framework.sharded_masters else 0.0
    each = np.maximum(jobs.options.element_bytes, masters)

    def copied_s(degree: str) -> Array:
        shares = [weights / getattr(holders.placement, degree) for weights, holders in held]
        return host_copy_s(machine, each * np.asarray(sum(shares)))

    trained, split = tuning.trained_share(jobs), jobs.placement.gradient_shard > 1
    stored, updated = copied_s("weight_shard"), trained * copied_s("optimizer_shard")
    gather = gas * (left_over(stored, forward) + left_over(stored, backward))
    reduced = gas * left_over(trained * copied_s("gradient_shard"), backward)
    return {
        "gather": np.where(loads, gather, 0.0),
        "gradients": np.where(gone, np.where(split, reduced, updated), 0.0),
        "publish": np.where(gone != loads, updated, 0.0),
    }
