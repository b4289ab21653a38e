"""What ranks send to each other in a step: the collectives that ``step`` times, with their bytes.

The trainer counts the same on its ranks, by the same purposes. Left out here is what hardly counts:
norms, biases and positions, the loss, the embedding's and the output layer's own sums, a tied
embedding's gradients between stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.cost import grid
from analysis.cost.exchange import Exchange
from analysis.cost.experts import on_stage
from analysis.cost.groups import along
from analysis.cost.jobs import FULL, NONE, Array, Jobs, Mask
from analysis.cost.stages import stage_layers
from search_spaces import Framework
from trainer.plan.ring import share_sent
from trainer.plan.shards import gathers_per_step
from trainer.plan.sizes import LAYER_GATHERS, LAYER_SUMS, Mixture, stage_weights
from trainer.plan.states import in_flat_buckets


@dataclass(frozen=True)
class StateExchanges:
    """Data parallelism's collectives.

    Attributes:
        weights: gathers split weights from where they are stored.
        secondary: gathers them from the nearer copy.
        gradients: splits a micro-batch's gradients over the ranks that accumulate them.
        gradient_scatter: once a step, between groups that have accumulated: over what is left of
            the optimizer's split.
        gradient_sum: between ranks that update the same weights.
        publish: what was updated, where weights are split less than optimizer states.
    """

    weights: Exchange
    secondary: Exchange
    gradients: Exchange
    gradient_scatter: Exchange
    gradient_sum: Exchange
    publish: Exchange


def stage_parameters(jobs: Jobs, framework: Framework) -> Array:
    """Weights on a rank of the fullest stage."""
    dealt = stage_layers(jobs, framework)
    # With a pipeline the first stage has the embedding, and the last one the output layer.
    both = ((jobs.pp == 1) & ~jobs.tied_embeddings) | jobs.folded
    tables = np.where(both, 2.0, 1.0)
    ends = stage_weights(jobs, np.maximum(dealt.first, dealt.last), tables, jobs.layer_ranks)
    plain = np.maximum(ends, stage_weights(jobs, dealt.inner, 0.0, jobs.layer_ranks))
    if jobs.mixture is not None:
        layers = np.maximum(dealt.most, dealt.last)
        plain = plain + _beside(jobs, jobs.mixture, layers)[0] / jobs.tp
    return np.asarray(plain)


def expert_parameters(jobs: Jobs, framework: Framework) -> Array:
    """Weights of the fullest stage's experts on one rank."""
    if jobs.mixture is None:
        return np.zeros(len(jobs))
    dealt = stage_layers(jobs, framework)
    layers = np.maximum(dealt.most, dealt.last)
    return np.asarray(_beside(jobs, jobs.mixture, layers)[1] / (jobs.ep * jobs.etp))


def _beside(jobs: Jobs, mixture: Mixture, layers: Array) -> tuple[Array, Array]:
    # Dense layers are on the first of several stages, which therefore is not the fullest.
    return on_stage(jobs, mixture, layers, np.where(jobs.pp == 1, 1.0, 0.0))


def reduces_every_time(jobs: Jobs, framework: Framework) -> Mask:
    """Where whole gradients are reduced after every micro-batch, and not once a step."""
    pipelined = (jobs.pp > 1) & (jobs.replicas > 1) & (jobs.optimizer_shard == 1)
    return np.asarray(pipelined & framework.gradients_synced_per_micro_batch)


def in_buckets(jobs: Jobs, framework: Framework) -> Mask:
    """Where gradients are whole, or split in flat buckets beside whole weights."""
    quantized = (jobs.gather_bits > 0) | (jobs.reduce_bits > 0)
    flat = framework.flat_buckets & np.asarray(in_flat_buckets(jobs, quantized))
    return np.asarray(flat | (jobs.gradient_shard == 1))


def state_exchanges(
    jobs: Jobs, framework: Framework, weights: Array | None = None
) -> StateExchanges:
    """Of the fullest stage.

    Args:
        jobs: of which; see also ``experts.as_experts_are_held``.
        framework: its habits.
        weights: on a rank; default all but experts.
    """
    weights = stage_parameters(jobs, framework) if weights is None else weights
    gather_bytes = np.where(jobs.gather_bits > 0, jobs.gather_bits / 8, jobs.element_bytes)
    reduce_bytes = np.where(jobs.reduce_bits > 0, jobs.reduce_bits / 8, framework.reduce_bytes)
    held_bytes = np.where(jobs.secondary_bits > 0, jobs.secondary_bits / 8, gather_bytes)
    axes, one = jobs.state_axes, np.ones(len(jobs))
    split = jobs.weight_shard > 1
    stored, nearer = gathers_per_step(jobs.gas, jobs.secondary_shard > 0)
    rest = weights * reduce_bytes / jobs.gradient_shard
    further = jobs.optimizer_shard / jobs.gradient_shard
    return StateExchanges(
        weights=Exchange(
            "all_gather",
            along(axes, "dp", jobs.weight_shard),
            weights * gather_bytes,
            np.where(split, stored, 0.0),
        ),
        secondary=Exchange(
            "all_gather",
            along(axes, "dp", np.maximum(jobs.secondary_shard, 1)),
            weights * held_bytes,
            np.where(split, nearer, 0.0),
        ),
        gradients=Exchange(
            "reduce_scatter",
            along(axes, "dp", jobs.gradient_shard),
            weights * reduce_bytes,
            jobs.reductions,
        ),
        gradient_scatter=Exchange(
            "reduce_scatter", along(axes, "dp", further, jobs.gradient_shard), rest, one
        ),
        gradient_sum=Exchange(
            "all_reduce",
            along(axes, "dp", jobs.replicas / jobs.optimizer_shard, jobs.optimizer_shard),
            rest / further,
            np.where(reduces_every_time(jobs, framework), jobs.gas, 1.0),
        ),
        publish=Exchange(
            "all_gather",
            along(axes, "dp", jobs.optimizer_shard / jobs.weight_shard, jobs.weight_shard),
            weights * gather_bytes / jobs.weight_shard,
            one,
        ),
    )


def activation_bytes(jobs: Jobs) -> Array:
    """Of a micro-batch on one rank, between two layers."""
    return jobs.tokens * jobs.hidden_size / jobs.gy * jobs.element_bytes


def key_value_bytes(jobs: Jobs) -> Array:
    """Keys and values of a micro-batch's whole sequences in one layer, on one tensor-parallel rank.

    Context parallelism brings them to every rank, round a ring (Liu et al. 2023) or gathered at
    once (Llama Team 2024, section 3.3.2): each sends the same bytes.
    """
    keys = 2 * jobs.kv_heads * jobs.head_dim / jobs.tp
    return np.asarray(jobs.tokens * jobs.cp * keys * jobs.element_bytes)


def splits_sequence(jobs: Jobs, framework: Framework) -> Mask:
    """Where activations between layers are split over the tensor-parallel ranks."""
    return np.asarray(jobs.sequence_parallel | framework.sequence_parallel)


def sent_bytes(jobs: Jobs, framework: Framework) -> dict[str, Array]:
    """Bytes that a rank of the fullest stage sends per step, by the trainer's purposes.

    ``gradients`` are all of their reductions, the trainer's ``gradient_sync`` included.
    """
    states = state_exchanges(jobs, framework)
    reductions = (states.gradients, states.gradient_scatter, states.gradient_sum)
    layers = stage_layers(jobs, framework).most
    depth = grid.depth_exchanges(jobs, framework, stage_parameters(jobs, framework))
    sums = grid.sums(jobs)
    return {
        "weights": states.weights.sent_bytes + jobs.gas * depth.weights.sent_bytes,
        "secondary": states.secondary.sent_bytes,
        "gradients": np.asarray(
            sum(one.sent_bytes for one in reductions) + jobs.gas * depth.gradients.sent_bytes
        ),
        "publish": states.publish.sent_bytes,
        "tensor": _tensor_bytes(jobs, framework)
        + jobs.gas * layers * np.asarray(sum(one.sent_bytes for one in sums)),
        "context": _context_bytes(jobs, framework),
        "pipeline": _pipeline_bytes(jobs, framework),
    }


def _tensor_bytes(jobs: Jobs, framework: Framework) -> Array:
    again = np.where(jobs.recompute == FULL, framework.repeated_sums, 0.0)
    layers = stage_layers(jobs, framework).most
    # A sum is a scatter and a gathering either way; with a split sequence there are more gathers.
    more = np.where(splits_sequence(jobs, framework), LAYER_GATHERS - LAYER_SUMS, 0.0)
    calls = jobs.gas * layers * (2 * (LAYER_SUMS + again) + more)
    return np.asarray(calls * share_sent(jobs.tp) * activation_bytes(jobs))


def _context_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Keys and values in each pass, and their gradients; either recomputation repeats attention."""
    rounds = np.where(jobs.recompute > NONE, 4.0, 3.0)
    layers = stage_layers(jobs, framework).most
    return np.asarray(jobs.gas * layers * rounds * share_sent(jobs.cp) * key_value_bytes(jobs))


def _pipeline_bytes(jobs: Jobs, framework: Framework) -> Array:
    """Of a stage in the middle: activations to the next one, their gradients to the one before."""
    share = np.where(splits_sequence(jobs, framework), jobs.tp, 1.0)
    messages = jobs.gas * jobs.vpp * np.minimum(jobs.pp - 1, 2)
    return np.asarray(messages * activation_bytes(jobs) / share)
