"""Mixtures of experts: what their weights, activations and routing add to a plain model's.

Expert parallelism is Megatron's: ``ep`` ranks, each with a part of every layer's experts, are taken
from those that data and context parallelism have, so that the world is no larger. Experts' matrices
are split over ``etp`` ranks, by default ``tp``. A rank's experts are therefore held by
``tp cp dp / (ep etp)`` ranks, among which gradients are reduced and states split (Megatron Core,
"Mixture of Experts": expert data parallelism). Models without experts never come here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analysis.cost.constants import Array
from analysis.cost.jobs import Jobs
from trainer.plan.sizes import Mixture, expert_weights, ffn_weights, mixed_layers


def as_experts_are_held(jobs: Jobs) -> Jobs:
    """The jobs with the degrees by which experts' states are split and reduced.

    In ``tp``'s place stand the ranks over which one layer's experts are dealt out and split, in
    ``dp``'s those that hold the same ones. States that are split over all ranks with the same
    plain weights are split over all with the same experts.
    """
    holders = jobs.ep * jobs.etp
    copies = jobs.tp * jobs.cp * jobs.dp / holders
    fewer = jobs.replicas / copies

    def shard(degree: Array) -> Array:
        return np.where(degree > 1, np.clip(degree / fewer, 1, np.maximum(copies, 1)), degree)

    return replace(
        jobs,
        tp=holders,
        cp=np.ones(len(jobs)),
        dp=copies,
        weight_shard=shard(jobs.weight_shard),
        gradient_shard=shard(jobs.gradient_shard),
        optimizer_shard=shard(jobs.optimizer_shard),
        secondary_shard=shard(jobs.secondary_shard),
    )


def mixed_share(jobs: Jobs, mixture: Mixture) -> Array:
    """Of all layers, those that have experts."""
    return np.asarray(mixed_layers(jobs, mixture) / jobs.num_layers)


def on_stage(jobs: Jobs, mixture: Mixture, layers: Array, first: Array) -> tuple[Array, Array]:
    """Weights of a stage beside ``trainer.stage_weights``, before any split.

    Args:
        jobs: of which.
        mixture: theirs.
        layers: that the stage has.
        first: 1 where it is the first stage: dense layers come before all others.

    Returns:
        What the stage's dense layers have beyond what is counted for layers with experts; and all
        weights of its experts.
    """
    some = mixture.num_experts > 0
    dense = np.where(some, np.minimum(mixture.dense_layers, layers) * first, 0.0)
    beyond = ffn_weights(jobs, jobs.ffn_size - mixture.shared_ffn_size)
    beyond = beyond - mixture.num_experts * jobs.hidden_size
    return dense * beyond, (layers - dense) * expert_weights(jobs, mixture)


def assigned_tokens(jobs: Jobs, mixture: Mixture) -> Array:
    """Pairs of a token and its expert in one micro-batch that one rank's experts compute.

    Tokens are dealt out over ``tp`` before they are sent, and gathered over ``etp`` after; the
    router is taken to be balanced.
    """
    return np.asarray(
        jobs.tokens * jobs.etp / jobs.tp * mixture.experts_per_token * mixture.capacity
    )


def local_experts(jobs: Jobs, mixture: Mixture) -> Array:
    """Of one layer, on one rank; 1 where there are none."""
    return np.asarray(np.maximum(mixture.num_experts / jobs.ep, 1))


def activation_bytes(jobs: Jobs, mixture: Mixture, fused: bool = False) -> Array:
    """What the experts of one layer keep of a micro-batch: their inputs, what is between their
    matrices, and their outputs, which the router's gradient needs.

    Fused, the gate's kernel weighs tokens as well, so that neither its result before the product
    nor the outputs are kept.
    """
    inner = np.where(jobs.gated, 3 if fused else 4, 2) * mixture.expert_ffn_size / jobs.etp
    kept = jobs.element_bytes * ((1 if fused else 2) * jobs.hidden_size + inner)
    return np.asarray(assigned_tokens(jobs, mixture) * kept)
