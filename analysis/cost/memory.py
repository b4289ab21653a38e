"""Memory of one rank of a job in parts: states, activations, and what the allocator adds.

The derivation of every term is in docs/how-it-works/memory.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from analysis.cost import state_memory, tuning
from analysis.cost.activations import (
    layer_bytes,
    left_on_device,
    logits_bytes,
    sequence_split,
    stage_bytes,
    waiting_logits_bytes,
)
from analysis.cost.constants import Constants, Parts, constant
from analysis.cost.stages import StageLoad, all_holders, fullest_stages, stacked_stages
from analysis.cost.state_memory import as_held, num_tables, stage_states
from search_spaces import Framework
from trainer.plan.axes import cp, grid
from trainer.plan.axes.dp import Holders, in_buckets
from trainer.plan.jobs import NONE, STEP_GRAPHS, Array, Jobs
from trainer.plan.sizes import expert_weights, ffn_weights, layer_weights, table_weights
from trainer.plan.states import PENDING_REDUCTIONS

GIB = 2.0**30
GATHERED_TENSORS = 2.0  # whole hidden states beside a layer that sequence parallelism splits

Allocator = Literal["tensors", "roomy", "short"]
"""Which bytes count: tensors only, or also the free blocks that the allocator keeps while memory is
``roomy``, or those that it cannot use when memory is ``short``."""


@dataclass(frozen=True)
class MemoryConstants(Constants):
    """Constants that formulas leave open; see :func:`analysis.cost.constants.constant`."""

    # outside the allocator: the driver's context, kernels, unusable memory
    context_bytes: float = constant(1.5 * GIB, 0.3)
    # outside the allocator, for each kind of group that a rank is in
    communicator_bytes: float = constant(0.4 * GIB, 0.8)
    # scratch space of matrix products and of the optimizer, in the allocator
    workspace_bytes: float = constant(0.3 * GIB, 0.4)
    activation_scale: float = constant(1.0, 0.05)  # activations kept over those in the formulas
    logit_scale: float = constant(1.0, 0.01)  # copies of the logits over those in the profile
    # share of flat gradient copies that fit no block freed by activations
    unserved_share: float = constant(0.7, 0.4)
    # share of one micro-batch's activations that the allocator keeps in free blocks while memory is
    # roomy; without recomputation times (1 - 1 / sequence split), as hole_share is
    cached_share: float = constant(0.3, 0.5)
    # share of the activations in blocks too small for a request when memory is short, before the
    # factor (1 - 1 / sequence split): gathered tensors come and go between those that stay
    hole_share: float = constant(0.15, 0.2)


@dataclass(frozen=True)
class MemoryParts(Parts):
    """Bytes on the fullest rank; columns of shape (n,)."""

    weights: Array  # of the computation, as stored
    secondary: Array  # copy of the weights on nearer ranks
    gradients: Array  # accumulated ones, in all copies
    optimizer: Array  # master weights and moments
    activations: Array  # of all micro-batches in flight
    working: Array  # of the current layer: recomputed activations, gathered weights and tensors
    logits: Array  # on the last stage
    buffers: Array  # of gradient reduction, of the allocator's cache and scratch space
    framework: Array  # outside the allocator: driver's context and communicators

    @property
    def reserved(self) -> Array:
        """Bytes that torch's allocator reserves: all but what is outside it."""
        return self.total - self.framework

    def times(self, factor: float) -> Self:
        return type(self)(**{name: part * factor for name, part in self.as_dict().items()})


def memory(jobs: Jobs, framework: Framework, constants: MemoryConstants) -> MemoryParts:
    """Parts of what the fullest rank needs when memory is short; bytes."""
    stages = _stages(jobs, framework, constants, "short")
    needed = stages.total
    fullest = np.argmax(needed, axis=0)
    at = fullest, *np.indices(fullest.shape, sparse=True)
    return MemoryParts(
        **{
            name: (part if part.shape == needed.shape else np.broadcast_to(part, needed.shape))[at]
            for name, part in stages.as_dict().items()
        }
    )


def host_bytes(jobs: Jobs, framework: Framework, constants: MemoryConstants) -> Array:
    """Offloaded activations and states in the host's memory, of the rank with most; bytes."""
    options, activations = jobs.options, np.zeros(len(jobs))
    if options.offload_activations.any():
        layer = constants.activation_scale * layer_bytes(jobs, framework, options.recompute)
        stages = fullest_stages(jobs, framework)
        each = np.max([stage.in_flight * stage.layers * layer for stage in stages], axis=0)
        activations = np.where(options.offload_activations, each, activations)
    if not (options.offload_optimizer + options.offload_parameters).any():
        return activations
    jobs = as_held(jobs, framework)
    stage, holders = StageLoad(*stacked_stages(jobs, framework)), all_holders(jobs, framework)
    states, _ = stage_states(stage, num_tables(stage, jobs), jobs, holders, framework)
    kept = state_memory.on_device(states, jobs, framework)
    left = np.asarray(sum(states.values()) - sum(kept.values()))
    return np.asarray(activations + left.max(axis=0))


def reported(jobs: Jobs, framework: Framework, constants: MemoryConstants) -> tuple[Array, Array]:
    """The peak that the framework reports, and the tensors in it, a lower bound; bytes."""
    state: Allocator = "tensors" if framework.reports == "allocated" else "roomy"
    stages = _stages(jobs, framework, constants, state, framework.reports_first_stage)
    peaks = stages.total if framework.reports == "device" else stages.reserved
    return peaks.max(axis=0), (stages.reserved - stages.buffers).max(axis=0)


def _stages(
    jobs: Jobs,
    framework: Framework,
    constants: MemoryConstants,
    state: Allocator,
    first_only: bool = False,
) -> MemoryParts:
    """Parts of a rank of each stage that may be the fullest; columns of shape (stages, ..., n)."""
    jobs = as_held(jobs, framework)
    # Constants may be columns of many draws, of shape (c, 1).
    beside = np.index_exp[:, None] if np.ndim(constants.workspace_bytes) else np.index_exp[:]
    rows = slice(1 if first_only else None)
    stages = StageLoad(*[column[rows][beside] for column in stacked_stages(jobs, framework)])
    layer = layer_bytes(jobs, framework, jobs.options.recompute)
    holders = all_holders(jobs, framework)
    return _stage_memory(stages, layer, jobs, holders, framework, constants, state)


def _stage_memory(
    stage: StageLoad,
    layer: Array,
    jobs: Jobs,
    holders: Sequence[Holders],
    framework: Framework,
    constants: MemoryConstants,
    state: Allocator,
) -> MemoryParts:
    """Parts of the stages' ranks; ``layer``: bytes that a layer keeps of a micro-batch."""
    tables = num_tables(stage, jobs)
    states, held = stage_states(stage, tables, jobs, holders, framework)
    states = state_memory.on_device(states, jobs, framework)
    every = np.asarray(sum(weights for weights, _ in held))
    one = constants.activation_scale * stage_bytes(stage, layer, jobs, framework)
    one = left_on_device(stage, one, constants.activation_scale * layer, jobs, framework)
    logits = np.where(stage.head, constants.logit_scale * logits_bytes(jobs, framework), 0.0)
    working = _working_bytes(stage, tables, layer, one, logits, jobs, framework, held[0])
    activations = stage.in_flight * (one + grid.kept_weight_bytes(jobs, stage.layers))
    activations = activations + np.where(
        stage.head, waiting_logits_bytes(jobs, stage.in_flight), 0.0
    )
    share = tuning.trained_share(jobs)
    unsharded = (jobs.layout.replicas > 1) & (jobs.placement.optimizer_shard == 1)
    buffers: list[Array] = [
        constants.workspace_bytes + framework.fixed_buffer_bytes + np.zeros(len(jobs)),
        np.where(unsharded, framework.bucket_bytes * share * every, 0.0),
        np.where(jobs.options.graphs == STEP_GRAPHS, framework.step_graph_bytes, 0.0),
    ]
    if framework.placeholder_gradients:
        buffers.append(_placeholder_bytes(stage, jobs))
    # Gradients are reduced and applied after activations are freed: copies of them need more memory
    # only where they are larger than the freed blocks, or do not fit into them.
    copies = [_copied_gradients(w * share, holders, framework) for w, holders in held]
    flat, applied = (np.asarray(sum(each)) for each in zip(*copies, strict=True))
    applied = np.where(state_memory.updates_on_host(jobs, framework), 0.0, applied)
    passing = 1 - 1 / sequence_split(jobs, framework)  # share that is gathered and freed again
    if state == "roomy":
        whole = jobs.options.recompute == NONE
        fresh = np.maximum(constants.unserved_share * flat, applied)
        freed = framework.freed_weight_bytes * every
        buffers += [
            constants.cached_share * one * np.where(whole, passing, 1.0),
            np.where(jobs.placement.weight_shard == 1, freed, 0.0),
            np.maximum(fresh - logits, 0.0),
        ]
    else:
        free = activations + working + logits
        buffers.append(np.maximum(np.maximum(flat, applied) - free, 0.0))
    if state == "short" and not framework.expandable_segments:
        buffers.append(constants.hole_share * activations * passing)
    degrees = jobs.layout.axes.sizes.values()
    groups = np.asarray(sum(np.where(degree > 1, 1.0, 0.0) for degree in degrees))
    if jobs.model.mixture is not None:  # experts have groups of their own
        mixed = jobs.model.mixture.num_experts > 0
        own = (jobs.layout.ep, jobs.layout.etp, holders[1].size)
        groups = groups + sum(np.where(mixed & (degree > 1), 1.0, 0.0) for degree in own)
    symmetric = np.where(jobs.options.async_tp, 2 * jobs.activation_bytes / jobs.layout.tp, 0.0)
    return MemoryParts(
        **states,
        activations=activations,
        working=working,
        logits=logits,
        buffers=np.asarray(sum(buffers)),
        framework=constants.context_bytes + constants.communicator_bytes * groups + symmetric,
    )


def _copied_gradients(
    parameters: Array, holders: Holders, framework: Framework
) -> tuple[Array, Array]:
    """Bytes of gradient copies after the last backward pass: the flat one to be reduced, and those
    to be applied, which are made after the flat one is freed.
    """
    shards = holders.placement.optimizer_shard
    flat = np.where(
        framework.flat_reduction & (holders.size > 1) & (shards > 1), framework.gradient_bytes, 0.0
    )
    whole, split = framework.step_gradient_bytes
    applied = np.where(shards == 1, whole, split) / shards
    return flat * parameters, applied * parameters


def _working_bytes(
    stage: StageLoad,
    num_tables: Array,
    layer: Array,
    kept: Array,
    logits: Array,
    jobs: Jobs,
    framework: Framework,
    held: tuple[Array, Holders],
) -> Array:
    """Bytes of the current layer: its recomputed activations, and tensors gathered for it.

    Sharded weights are whole for this layer, for the next one, which is prefetched, and without a
    pipeline for the vocabulary tables, with which a micro-batch begins and ends. So are a layer's
    gradients, and the copy of them being reduced (Rajbhandari et al. 2020; Zhao et al. 2023, on
    FSDP, section 3.3). The logits are freed before the first layer's backward pass.
    """
    (parameters, dense), tp, e = held, jobs.layout.tp, jobs.options.element_bytes
    some = np.where(stage.layers > 0, 1.0, 0.0)
    one = some * layer_weights(jobs.model) / tp
    if jobs.model.mixture is not None:
        experts = jobs.layout.ep * jobs.layout.etp
        one = one + some * expert_weights(jobs.model, jobs.model.mixture) / experts
    tables = num_tables * table_weights(jobs.model) / tp
    table = np.minimum(tables, table_weights(jobs.model) / tp)
    matrix = np.maximum(some * jobs.model.hidden_size * jobs.model.ffn_size / tp, table)
    most = np.maximum(framework.live_parameters, matrix)
    stored = one * tuning.gathered_share(jobs, framework)
    both = np.maximum(2 * stored, table) if framework.separate_tables else 2 * stored + tables
    unit = np.where(jobs.layout.pp == 1, both, stored + np.maximum(stored, table))
    weights = np.where(jobs.placement.weight_shard > 1, np.minimum(unit, most) * e, 0.0)
    leaving = np.minimum(one, most) * (e + framework.reduce_bytes)
    if framework.flat_buckets:
        flat = in_buckets(jobs, framework, dense)
        leaving = np.where(flat, _leaving_buckets(parameters, matrix, jobs, framework), leaving)
    splits = (jobs.placement.gradient_shard > 1) & ~tuning.freezes(jobs)
    apart = splits & (jobs.placement.weight_shard > 1) & (framework.reduced_apart > 0)
    bucket = np.minimum(np.maximum(framework.reduced_apart, matrix), parameters)
    weights = weights + np.where(apart, bucket * (e + framework.reduce_bytes), 0.0)
    whole = jobs.tokens * jobs.model.hidden_size * e
    passing = 1 - 1 / sequence_split(jobs, framework)  # share that is gathered and freed again
    recomputed: Array | float = 0.0
    if (jobs.options.recompute != NONE).any():
        everything = layer_bytes(jobs, framework, np.full(len(jobs), NONE))
        recomputed = some * (everything - layer)
    parts = [
        recomputed,
        np.where(splits & ~apart, leaving, 0.0),
        tuning.dequantized_bytes(jobs),
        GATHERED_TENSORS * whole * passing,
        cp.working_bytes(jobs),
    ]
    if framework.fused_layers:
        # Gradients of the gate's inputs, beside the layer's own.
        gate = np.where(jobs.model.gated, 2, 1) * jobs.model.ffn_size / tp
        own = jobs.model.hidden_size / sequence_split(jobs, framework)
        parts.append(some * jobs.tokens * e * (gate + own))
    later = np.asarray(sum(parts))
    if framework.loose_gradients:
        # They grow while the micro-batch's activations are freed.
        later = np.maximum(later, e * parameters * tuning.trained_share(jobs) - kept)
    return np.asarray(weights + np.maximum(later - logits, 0.0))


def _placeholder_bytes(stage: StageLoad, jobs: Jobs) -> Array:
    """Bytes of placeholder gradients: one matrix per shape, for any number of layers or experts.

    A mixture's dense layers come first, so that only the first stage has theirs.
    """
    elements = layer_weights(jobs.model) / jobs.layout.tp
    if jobs.model.mixture is not None:
        mixture = jobs.model.mixture
        dense = stage.embedding & (np.asarray(mixture.dense_layers) > 0)
        elements = elements + np.where(
            dense, ffn_weights(jobs.model, jobs.model.ffn_size) / jobs.layout.tp, 0.0
        )
        some = np.asarray(mixture.num_experts) > 0
        one = ffn_weights(jobs.model, mixture.expert_ffn_size) / jobs.layout.etp
        elements = elements + np.where(some, one, 0.0)
    return np.asarray(np.where(stage.layers > 0, jobs.options.element_bytes * elements, 0.0))


def _leaving_buckets(parameters: Array, matrix: Array, jobs: Jobs, framework: Framework) -> Array:
    """Bytes of sharded gradients in flat buckets: the largest gradient, the bucket it is copied to,
    and the buckets being reduced; 0 where gradients are summed whole.
    """
    buckets = (1 + PENDING_REDUCTIONS) * np.maximum(jobs.options.bucket_elements, matrix)
    held = np.minimum(buckets, parameters)
    found = held * framework.reduce_bytes + matrix * jobs.options.element_bytes
    return np.asarray(np.where(jobs.placement.reduces_once & (jobs.layout.gas > 1), 0.0, found))
