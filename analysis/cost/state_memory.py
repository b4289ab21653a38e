"""Memory of training states, weights, gradients and optimizer, on the stages' ranks and on hosts.

ZeRO-Offload (Ren et al. 2021) keeps the optimizer's states on the host, which updates them: each
step sends a rank's gradients down and its new weights up. With weights on the host too, as in
ZeRO-Infinity (Rajbhandari et al. 2021) and FSDP's CPU offloading, every pass loads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.cost import tuning
from analysis.cost.stages import StageLoad, kept_by
from search_spaces import Cluster, Framework
from trainer.plan.axes import ep
from trainer.plan.axes.dp import Holders, in_buckets
from trainer.plan.jobs import Array, Jobs, Mask
from trainer.plan.sizes import table_weights
from trainer.plan.states import DEGREES, masters_are_weights, state_bytes

HOST_PROCESS_BYTES = 4.0 * 2**30
"""Memory of a rank's process on the host: libraries, the driver's context, loaded data. Assumed."""
HOST_LOG_SD = 0.15  # of what a node's ranks need there; assumed


@kept_by("optimizer_always_sharded")
def as_run(jobs: Jobs, framework: Framework) -> Jobs:
    """Jobs with the degree by which the framework shards optimizer states of 16-bit weights."""
    if not framework.optimizer_always_sharded:
        return jobs
    said = jobs.placement
    whole = (said.optimizer_shard == 1) & (jobs.options.element_bytes < 4)
    degree = np.where(whole, jobs.layout.replicas, said.optimizer_shard)
    return replace(jobs, placement=replace(said, optimizer_shard=degree))


@kept_by("optimizer_always_sharded", "whole_in_pipelines")
def as_held(jobs: Jobs, framework: Framework) -> Jobs:
    """Jobs with the degrees by which the framework really shards training states."""
    jobs = as_run(jobs, framework)
    if not framework.whole_in_pipelines:
        return jobs
    whole, said = jobs.layout.pp > 1, jobs.placement
    weights = np.where(whole, 1.0, said.weight_shard)
    gradients = np.where(whole, 1.0, said.gradient_shard)
    return replace(jobs, placement=replace(said, weight_shard=weights, gradient_shard=gradients))


def num_tables(stage: StageLoad, jobs: Jobs) -> Array:
    """Number of a stage's vocabulary tables; a tied one counts once if the stage has both ends."""
    # A folded pipeline has both ends on one rank, with a copy each.
    both = stage.embedding & stage.head & jobs.model.tied_embeddings & ~jobs.folded
    return np.where(both, 1.0, stage.embedding * 1.0 + stage.head * 1.0)


def stage_states(
    stage: StageLoad, tables: Array, jobs: Jobs, holders: Sequence[Holders], framework: Framework
) -> tuple[dict[str, Array], list[tuple[Array, Holders]]]:
    """Bytes of the states of the stages' ranks, wherever they are, and the parameters held."""
    each = ep.rank_parameters(jobs, stage.layers, tables, stage.embedding)
    held = [*zip(each, holders, strict=False)]
    every = np.asarray(sum(weights for weights, _ in held))
    rows = tables * table_weights(jobs.model) / jobs.layout.layer_ranks
    states = _state_bytes(held, jobs, framework)
    return tuning.tuned_states(states, jobs, framework, every, rows, stage.layers), held


def _state_bytes(
    held: list[tuple[Array, Holders]], jobs: Jobs, framework: Framework
) -> dict[str, Array]:
    """States of all classes of parameters, dense ones first, with the copies that jobs add."""
    each = [rank_state_bytes(weights, jobs, framework, holders) for weights, holders in held]
    if not framework.tensor_splits_states:
        for own, (_, holders) in zip(each, held, strict=True):
            for name, degree in zip(own, DEGREES, strict=True):
                shard = getattr(holders.placement, degree)
                own[name] = own[name] * np.where(shard > 1, jobs.layout.tp, 1)
    states = {name: np.asarray(sum(one[name] for one in each)) for name in each[0]}
    parameters, dense = held[0]
    if jobs.placement.reduces_once.any():
        shards = dense.placement.gradient_shard
        sums = jobs.placement.reduces_once & (shards > 1) & (jobs.layout.gas > 1)
        # In flat buckets the reduced shard stays in place.
        kept = np.where(in_buckets(jobs, framework, dense), 1 - 1 / shards, 1.0)
        whole = framework.gradient_bytes * parameters * kept
        states["gradients"] = states["gradients"] + np.where(sums, whole, 0.0)
    if jobs.options.fp8.any():
        # Sharded weights are gathered, and with them cast, layer by layer.
        copied = sum(weights / holders.placement.weight_shard for weights, holders in held)
        copies = np.where(jobs.options.fp8, framework.fp8_copy_bytes * copied, 0.0)
        states["weights"] = states["weights"] + copies
    return states


def rank_state_bytes(
    parameters: Array, jobs: Jobs, framework: Framework, holders: Holders
) -> dict[str, Array]:
    """Weights, secondary copy, gradients and optimizer states of a rank's parameters.

    ``trainer.plan.states`` with the framework's habits.
    """
    e, bits = jobs.options.element_bytes, jobs.placement.secondary_bits
    one_copy = np.asarray(e == 4)
    if framework.sharded_masters:
        flat = in_buckets(jobs, framework, holders)
        one_copy = masters_are_weights(holders.placement, one_copy, flat)
    # Master weights that are on the host are not those of the computation.
    one_copy = one_copy & ~updates_on_host(jobs, framework)
    whole = (holders.placement.gradient_shard == 1) & (e < 4)
    alone = (holders.placement.optimizer_shard == 1) | (jobs.placement.zero_stage == 0)
    extra = np.where(alone, *framework.extra_gradient_bytes)
    return state_bytes(
        parameters,
        holders.placement,
        weight_bytes=e,
        secondary_bytes=np.where(bits > 0, bits / 8, e),
        gradient_bytes=framework.gradient_bytes,
        one_copy=one_copy,
        regathers=framework.sharded_masters,
        master_bytes=framework.master_bytes,
        moment_bytes=framework.moment_bytes,
        extra_gradient_bytes=np.where(whole, extra, 0.0),
    )


def loads_weights(jobs: Jobs) -> Mask:
    """Whether weights are in the host's memory between the passes of their layers."""
    return np.asarray(jobs.options.offload_parameters != 0)


def updates_on_host(jobs: Jobs, framework: Framework) -> Mask:
    """Whether optimizer states are there: with the weights, if these are the master weights."""
    one_copy = framework.sharded_masters or framework.master_bytes == 0
    both = loads_weights(jobs) & one_copy
    return np.asarray((jobs.options.offload_optimizer != 0) | both)


def splits_gradients(jobs: Jobs) -> Mask:
    """Whether gradients leave as they are reduced, as in ZeRO 2 and 3 on any number of ranks."""
    return np.asarray((jobs.placement.gradient_shard > 1) | (jobs.placement.zero_stage >= 2))


def on_device(states: dict[str, Array], jobs: Jobs, framework: Framework) -> dict[str, Array]:
    """Bytes of states that stay on a GPU.

    Split gradients go to the host as they are reduced; whole ones are summed on the GPU.
    """
    gone, loads = updates_on_host(jobs, framework), loads_weights(jobs)
    if not (gone | loads).any():
        return states
    gone_by_state = {
        "weights": loads,
        "gradients": gone & splits_gradients(jobs),
        "optimizer": gone,
    }
    return states | {name: np.where(g, 0.0, states[name]) for name, g in gone_by_state.items()}


def fits_host(held: Array, jobs: Jobs, cluster: Cluster) -> Array:
    """Probability that a node's memory holds what its ranks offload, ``held`` bytes each.

    1 where they offload nothing, or the cluster states no ``host_memory_gib``.
    """
    if cluster.host_memory_gib is None or not held.any():
        return np.ones(len(jobs))
    from scipy.special import ndtr  # slow to import, and a space is checked without it

    needed = ranks_of_node(jobs, cluster) * (held + HOST_PROCESS_BYTES)
    margin = np.log(cluster.host_memory_gib * 2**30 / needed)
    return np.where(held > 0, ndtr(margin / HOST_LOG_SD), 1.0)


def ranks_of_node(jobs: Jobs, cluster: Cluster) -> Array:
    return np.minimum(jobs.layout.world_size, cluster.gpus_per_node)
