"""Memory of the fullest GPU of a job, in parts, and the probability that it fits.

The derivation of every term is in docs/cost-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Self

import numpy as np
from scipy.special import ndtr

from analysis.cost.activations import (
    Stage,
    embedding_bytes,
    end_stages,
    head_bytes,
    layer_bytes,
    logits_bytes,
    refused,
    sequence_split,
    tokens,
)
from analysis.cost.constants import Constants, constant, fit
from analysis.cost.jobs import FULL, NONE, Array, Jobs, Mask
from analysis.cost.profiles import Profile

GIB = 2.0**30
PRIOR_LOG_SD = 0.06  # of the memory that a job needs, where nothing was fitted
NOISE_LOG_SD = 0.05  # that a good model leaves in reported peaks
OTHER_CAUSE = 0.7  # a failure predicted to need less of the limit was not for lack of memory
GATHERED_TENSORS = 2.0  # whole, beside a layer that sequence parallelism splits
_DIFFERENCE = 1e-3  # of a constant's logarithm, for derivatives


@dataclass(frozen=True)
class MemoryConstants(Constants):
    """What formulas leave open; see :func:`analysis.cost.constants.constant`."""

    context_bytes: float = constant(
        1.0 * GIB, 0.4, "driver's context, libraries' workspaces and kernels, outside the allocator"
    )
    communicator_bytes: float = constant(
        0.4 * GIB, 0.6, "of each kind of group that a rank is in, outside the allocator"
    )
    workspace_bytes: float = constant(
        0.3 * GIB, 0.6, "matrix products' and the optimizer's scratch space, in the allocator"
    )
    activation_scale: float = constant(1.0, 0.06, "activations kept, of what the formulas count")
    logit_scale: float = constant(1.0, 0.15, "copies of the logits, of what the profile counts")
    unserved_share: float = constant(
        0.7, 0.6, "flat copies of gradients that fit no block that activations left free"
    )
    cached_tensors: float = constant(
        0.5,
        0.8,
        "whole tensors that the allocator's free blocks hold per layer and micro-batch, where "
        "sequence parallelism gathers them",
    )
    fragment_tensors: float = constant(
        0.5, 0.8, "the same with memory short: blocks that kept tensors have split"
    )
    fragment_share: float = constant(
        0.02, 0.7, "the same with memory short: blocks that fit no request"
    )


@dataclass(frozen=True)
class MemoryParts:
    """Bytes on the fullest rank; columns of shape (n,).

    Attributes:
        weights: what is computed with, as it is stored.
        secondary: the nearer copy of the weights.
        gradients: accumulated ones, in all their copies.
        optimizer: master weights and moments.
        activations: of all micro-batches in flight.
        working: of the layer in work: recomputed activations, gathered weights and tensors.
        logits: on the last stage.
        buffers: of gradient reduction, of the allocator's cache and scratch space.
        framework: outside the allocator: driver's context and communicators.
    """

    weights: Array
    secondary: Array
    gradients: Array
    optimizer: Array
    activations: Array
    working: Array
    logits: Array
    buffers: Array
    framework: Array

    @property
    def total(self) -> Array:
        return np.asarray(sum(self.as_dict().values()))

    def as_dict(self) -> dict[str, Array]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def where(self, mask: Mask, other: Self) -> Self:
        """These rows where the mask holds, those of another record elsewhere."""
        mine, others = self.as_dict(), other.as_dict()
        return type(self)(**{name: np.where(mask, mine[name], others[name]) for name in mine})


def state_bytes(parameters: Array, jobs: Jobs, profile: Profile) -> dict[str, Array]:
    """Weights, secondary copy, gradients and optimizer states of a rank's parameters.

    As ``trainer.placement.Placement.bytes_per_rank`` for the trainer; other frameworks differ by
    the facts of their profiles.
    """
    e, gradient_shard = jobs.element_bytes, jobs.gradient_shard
    split = jobs.weight_shard > 1
    if profile.sharded_masters:
        stored = np.where(split, jobs.weight_shard, gradient_shard)
        one_copy = np.where(gradient_shard == 1, e == 4, split & (stored == jobs.optimizer_shard))
        regather = ~split & (gradient_shard > 1) & (gradient_shard < jobs.optimizer_shard)
        whole = 1 / jobs.weight_shard + np.where(regather, 1 / gradient_shard, 0.0)
    else:
        one_copy = np.asarray(e == 4)
        whole = 1 / jobs.weight_shard
    secondary = np.where(jobs.secondary_bits > 0, jobs.secondary_bits / 8, e)
    held = np.where(jobs.secondary_shard > 0, jobs.secondary_shard, np.inf)
    master_shard = np.where(one_copy, jobs.weight_shard, jobs.optimizer_shard)
    gradients = profile.gradient_bytes / gradient_shard + profile.extra_gradient_bytes
    return {
        "weights": np.where(one_copy, 0.0, e * whole) * parameters,
        "secondary": secondary / held * parameters,
        "gradients": gradients * parameters,
        "optimizer": (4 / master_shard + (profile.master_bytes - 4) / jobs.optimizer_shard)
        * parameters,
    }


def memory(jobs: Jobs, profile: Profile, constants: MemoryConstants) -> MemoryParts:
    """Parts of what the fullest rank needs when memory is short; bytes."""
    first, second, last = end_stages(jobs, profile)
    made = _stage_memory(first, jobs, profile, constants, cached=False)
    for stage in (second, last):
        other = _stage_memory(stage, jobs, profile, constants, cached=False)
        made = made.where(made.total >= other.total, other)
    return made


def reported_bytes(jobs: Jobs, profile: Profile, constants: MemoryConstants) -> Array:
    """What the framework prints as its peak: of its rank, and by its counter; bytes."""
    cached = profile.reports != "allocated"
    stages = end_stages(jobs, profile)
    parts = [
        _stage_memory(stage, jobs, profile, constants, cached)
        for stage in (stages[:1] if profile.reports_first_stage else stages)
    ]
    outside = profile.reports == "device"
    peaks = [p.total - (0.0 if outside else p.framework) for p in parts]
    return np.asarray(np.max(peaks, axis=0))


def _stage_memory(
    stage: Stage, jobs: Jobs, profile: Profile, constants: MemoryConstants, cached: bool
) -> MemoryParts:
    parameters = stage_parameters(stage, jobs)
    states = state_bytes(parameters, jobs, profile)
    layer = layer_bytes(jobs, profile, jobs.recompute)
    ends = np.where(stage.embedding, embedding_bytes(jobs, profile), 0.0)
    ends = ends + np.where(stage.head, head_bytes(jobs, profile), 0.0)
    one = constants.activation_scale * (stage.layers * layer + ends)
    logits = np.where(stage.head, constants.logit_scale * logits_bytes(jobs, profile), 0.0)
    working = _working_bytes(stage, jobs, profile, constants)
    if profile.loose_gradients:
        # They grow as the micro-batch's activations go.
        working = np.maximum(working, jobs.element_bytes * parameters - one - logits)
    activations = stage.in_flight * one
    served = activations + working + logits
    bucket = profile.bucket_bytes * parameters
    synced = (jobs.dp > 1) & (jobs.optimizer_shard > 1) & profile.flat_reduction
    flat = np.where(synced, profile.gradient_bytes * parameters, 0.0)
    if cached:
        flat = np.maximum(constants.unserved_share * flat - logits, 0.0)
    else:
        flat = np.maximum(flat - served, 0.0)
    replicas = (jobs.dp > 1) & (jobs.optimizer_shard == 1)
    holes = constants.cached_tensors if cached else constants.fragment_tensors
    whole = tokens(jobs) * jobs.hidden_size * jobs.element_bytes
    whole = (
        whole * (1 - 1 / sequence_split(jobs, profile)) * np.where(jobs.recompute == FULL, 0.0, 1.0)
    )
    cache = constants.fragment_share * served + holes * stage.layers * stage.in_flight * whole
    groups = sum(np.where(degree > 1, 1.0, 0.0) for degree in (jobs.tp, jobs.pp, jobs.dp))
    return MemoryParts(
        **states,
        activations=activations,
        working=working,
        logits=logits,
        buffers=np.where(replicas, bucket, 0.0) + constants.workspace_bytes + cache + flat,
        framework=constants.context_bytes + constants.communicator_bytes * groups,
    )


def stage_parameters(stage: Stage, jobs: Jobs) -> Array:
    """Weights of a stage on one rank of its tensor-parallel group.

    Tied tables are one where a stage has both ends, and a copy on each end elsewhere.
    """
    both = stage.embedding & stage.head & jobs.tied_embeddings
    tables = np.where(both, 1.0, stage.embedding * 1.0 + stage.head * 1.0)
    layers = stage.layers * jobs.layer_parameters
    return np.asarray((layers + tables * jobs.embedding_parameters) / jobs.tp)


def _working_bytes(stage: Stage, jobs: Jobs, profile: Profile, constants: MemoryConstants) -> Array:
    """Of the layer that is being computed: its recomputed activations and what was gathered.

    Split weights are whole for the layer in work and for the next one, which is gathered ahead;
    so are gradients that leave to be reduced (Rajbhandari et al. 2020; Zhao et al. 2023, on FSDP,
    section 3.3).
    """
    some = np.where(stage.layers > 0, 1.0, 0.0)
    again = np.full(len(jobs), NONE)
    kept = layer_bytes(jobs, profile, jobs.recompute)
    recomputed = np.where(jobs.recompute == FULL, layer_bytes(jobs, profile, again), kept) - kept
    largest = np.maximum(
        some * jobs.layer_parameters,
        np.where(stage.embedding | stage.head, jobs.embedding_parameters, 0.0),
    )
    unit = (some * jobs.layer_parameters + largest) / jobs.tp
    weights = np.where(jobs.weight_shard > 1, unit * jobs.element_bytes, 0.0)
    gradients = np.where(jobs.gradient_shard > 1, unit * jobs.element_bytes, 0.0)
    whole = tokens(jobs) * jobs.hidden_size * jobs.element_bytes
    split = sequence_split(jobs, profile)
    gathered = GATHERED_TENSORS * whole * (1 - 1 / split)
    return np.asarray(some * recomputed + weights + gradients + gathered)


@dataclass(frozen=True)
class MemoryModel:
    """Memory with constants, and how sure of it.

    Attributes:
        constants: of the formulas.
        covariance: of their logarithms; None before any evidence.
        log_sd: standard deviation of the logarithm of the memory needed.
    """

    constants: MemoryConstants = field(default_factory=MemoryConstants)
    covariance: Array | None = None
    log_sd: float = PRIOR_LOG_SD

    def parts(self, jobs: Jobs, profile: Profile) -> MemoryParts:
        """What the fullest rank needs, in parts; bytes."""
        return memory(jobs, profile, self.constants)

    def peak_bytes(self, jobs: Jobs, profile: Profile) -> Array:
        """What the framework would report as its peak."""
        return reported_bytes(jobs, profile, self.constants)

    def fits(self, jobs: Jobs, profile: Profile, limit_bytes: float) -> Array:
        """Probability that jobs run within a device's memory; 0 for what a framework refuses."""
        needed = self.parts(jobs, profile).total
        margin = np.log(limit_bytes / needed) / self.log_sd_of(jobs, profile, needed)
        return np.where(refused(jobs, profile), 0.0, ndtr(margin))

    def log_sd_of(self, jobs: Jobs, profile: Profile, needed: Array) -> Array:
        """Of the memory needed: what the formulas miss and what the constants leave open."""
        if self.covariance is None:
            return np.full(len(jobs), self.log_sd)
        logs = self.constants.logs()
        columns = []
        for i in range(len(logs)):
            moved = logs.copy()
            moved[i] += _DIFFERENCE
            near = memory(jobs, profile, MemoryConstants.from_logs(moved)).total
            columns.append(np.log(near / needed) / _DIFFERENCE)
        slopes = np.stack(columns, axis=1)
        unsure = np.einsum("ni,ij,nj->n", slopes, self.covariance, slopes)
        return np.asarray(np.sqrt(self.log_sd**2 + np.maximum(unsure, 0.0)))

    def calibrated(
        self,
        jobs: Jobs,
        profile: Profile,
        peak_bytes: Array,
        out_of_memory: Mask,
        limit_bytes: float,
    ) -> MemoryModel:
        """The model after evidence.

        Reported peaks are residuals, failures for memory say that a job needs more than there is,
        all other rows that it needs less. A failure whose predicted need is far below the limit
        had another cause and says nothing.

        Args:
            jobs: what was run, to the end or until memory was short.
            profile: of the framework.
            peak_bytes: as the framework reports it; nan where unknown.
            out_of_memory: failed for lack of memory, or for a reason unknown.
            limit_bytes: memory of the device.
        """
        needed = self.parts(jobs, profile).total
        believed = out_of_memory & (needed > OTHER_CAUSE * limit_bytes) & ~refused(jobs, profile)
        measured = np.isfinite(peak_bytes) & ~out_of_memory
        rows = believed | ~out_of_memory
        if not rows.any():
            return self
        failed, peaks = believed[rows], np.log(peak_bytes[measured])
        bounded, known = jobs[rows], jobs[measured]

        def residuals(constants: MemoryConstants) -> Array:
            over = np.log(memory(bounded, profile, constants).total / limit_bytes)
            bounds = np.where(failed, np.minimum(over, 0.0), np.maximum(over, 0.0))
            found = np.log(reported_bytes(known, profile, constants)) - peaks
            return np.concatenate([found, bounds])

        found = fit(self.constants, residuals, NOISE_LOG_SD, prior=MemoryConstants())
        return replace(self, constants=found.constants, covariance=found.covariance)
