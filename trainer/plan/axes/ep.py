"""Expert parallelism: experts of a mixture dealt out over ranks, and tokens sent to them.

As Megatron Core has it: ``ep`` ranks, each with a part of every layer's experts, are taken from
those of data and context parallelism, so that the world is no larger. Experts' matrices are split
over ``etp`` ranks, by default ``tp``. In the order of ranks ``etp`` is innermost, then ``ep``. A
rank's experts are held by ``tp cp dp / (ep etp)`` ranks, among which gradients are reduced and
states split (expert data parallelism). Each pass sends tokens to their experts and back. The
built-in trainer has none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainer.plan.axes.dp import Holders, dense_holders
from trainer.plan.axes.mesh import RankGroup
from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import BY_HABIT, FLEX, Array, Jobs, Mask
from trainer.plan.sizes import Mixture, expert_weights, ffn_weights, mixed_layers, stage_weights
from trainer.plan.states import DEGREES, Degrees


def all_holders(jobs: Jobs) -> list[Holders]:
    """Holders of dense parameters, and of experts where there are any."""
    dense = [dense_holders(jobs)]
    return dense if jobs.model.mixture is None else [*dense, expert_holders(jobs)]


def expert_holders(jobs: Jobs) -> Holders:
    """The ranks that hold the same experts.

    States that are split over all ranks with the same dense weights are split over all with the
    same experts.
    """
    layout, placement = jobs.layout, jobs.placement
    divisor = layout.ep * layout.etp
    copies = layout.tp * layout.cp * layout.dp / divisor
    fewer = layout.replicas / copies

    def shard(degree: Array) -> Array:
        return np.where(degree > 1, np.clip(degree / fewer, 1, np.maximum(copies, 1)), degree)

    degrees = Degrees(*(shard(getattr(placement, name)) for name in DEGREES))
    stride = layout.axes.of_states.stride("dp") / layout.tp * divisor
    return Holders(copies, stride, divisor, degrees, layout.axes.world_size)


def mixed_share(jobs: Jobs, mixture: Mixture) -> Array:
    """Share of the layers that have experts."""
    return np.asarray(mixed_layers(jobs.model, mixture) / jobs.model.num_layers)


def rank_parameters(
    jobs: Jobs, layers: Array, tables: Array | float, first: Mask
) -> tuple[Array, Array]:
    """Weights of a pipeline stage on one of its ranks, whatever the placement.

    Args:
        jobs: whose.
        layers: that the stage has.
        tables: of the vocabulary that it has: 0, 1 or 2.
        first: where it is the first stage: a mixture's dense layers come before all others.

    Returns:
        Dense parameters, and experts.
    """
    model, layout, mixture = jobs.model, jobs.layout, jobs.model.mixture
    plain = np.asarray(stage_weights(model, layers, tables, layout.layer_ranks))
    if mixture is None:
        return plain, np.zeros(len(jobs))
    some = first & (mixture.num_experts > 0)
    dense = np.where(some, np.minimum(mixture.dense_layers, layers), 0.0)
    # Weights of a dense layer beyond those that ``stage_weights`` counts for one with experts.
    beyond = ffn_weights(model, model.ffn_size - mixture.shared_ffn_size)
    beyond = beyond - mixture.num_experts * model.hidden_size
    experts = (layers - dense) * expert_weights(model, mixture) / (layout.ep * layout.etp)
    return plain + dense * beyond / layout.tp, experts


def assigned_tokens(jobs: Jobs, mixture: Mixture) -> Array:
    """Pairs of a token and its expert in one micro-batch that one rank's experts compute.

    Tokens are dealt out over ``tp`` before they are sent, and gathered over ``etp`` after; the
    router is taken to be balanced.
    """
    return np.asarray(
        jobs.tokens
        * jobs.layout.etp
        / jobs.layout.tp
        * mixture.experts_per_token
        * mixture.capacity
    )


def local_experts(jobs: Jobs, mixture: Mixture) -> Array:
    """Experts of one layer on one rank; 1 where there are none."""
    return np.asarray(np.maximum(mixture.num_experts / jobs.layout.ep, 1))


def activation_bytes(jobs: Jobs, mixture: Mixture, fused: bool = False) -> Array:
    """Bytes that the experts of one layer keep of a micro-batch: their inputs, what is between
    their matrices, and their outputs, which the router's gradient needs.

    Fused, the gate's kernel weighs tokens as well, so that neither its result before the product
    nor the outputs are kept.
    """
    inner = (
        np.where(jobs.model.gated, 3 if fused else 4, 2) * mixture.expert_ffn_size / jobs.layout.etp
    )
    kept = jobs.options.element_bytes * ((1 if fused else 2) * jobs.model.hidden_size + inner)
    return np.asarray(assigned_tokens(jobs, mixture) * kept)


class LayerExchanges(NamedTuple):
    """Exchanges of a layer with experts in all passes on one micro-batch.

    Attributes:
        plain: tokens on their way, each sent to all of its experts.
        inside, across: the same where a token is sent once to each node that has one of its
            experts, and from there to its ranks, at the same time (DeepSeek-AI 2024, section
            3.2.2). Nothing goes across where the ranks share a node.
        once: whether tokens are sent so.
        hidden: share of the micro-batches that compute for another one meanwhile.
        split: inputs gathered over the ranks that split an expert, and outputs summed.
    """

    plain: Exchange
    inside: Exchange
    across: Exchange
    once: Mask
    hidden: Array
    split: tuple[Exchange, Exchange]


def layer_exchanges(
    jobs: Jobs, habits: Habits, mixture: Mixture, members: Callable[[RankGroup], Array]
) -> LayerExchanges:
    """Each pass sends tokens to their experts and back (Megatron Core, "Mixture of Experts").

    Args:
        jobs: whose.
        habits: of their framework.
        mixture: theirs.
        members: ranks of a group that share a node.
    """
    layout, dispatcher = jobs.layout, jobs.options.dispatcher
    passes = np.where(jobs.repeats_layers, 3.0, 2.0)

    def way(places: Array | None, ranks: Array) -> Exchange:
        group = RankGroup(ranks, layout.etp, layout.world_size)
        num_bytes = dispatched_bytes(jobs, mixture, places)
        return Exchange("experts", "all_to_all", group, num_bytes, 2 * passes)

    plain = way(None, layout.ep)
    near = members(plain.group)
    across = way(layout.ep / near, layout.ep)
    split = RankGroup(layout.etp, np.ones(len(jobs)), layout.world_size)
    rows = assigned_tokens(jobs, mixture) * (jobs.model.hidden_size * jobs.options.element_bytes)
    return LayerExchanges(
        plain=plain,
        inside=way(layout.ep, near),
        across=replace(across, num_bytes=np.where(near < layout.ep, across.num_bytes, 0.0)),
        once=np.where(dispatcher == BY_HABIT, habits.sends_tokens_once, dispatcher == FLEX),
        # The first forward and the last backward pass have no other micro-batch beside them.
        hidden=np.where(jobs.options.overlaps_dispatch, 1 - 1 / layout.gas, 0.0),
        split=(
            Exchange("experts", "all_gather", split, rows, passes),
            Exchange("experts", "reduce_scatter", split, rows, passes),
        ),
    )


def dispatched_bytes(jobs: Jobs, mixture: Mixture, places: Array | None = None) -> Array:
    """Bytes of the tokens of one micro-batch that a rank sends to a layer's experts, or back.

    Args:
        jobs: whose.
        mixture: theirs.
        places: ranks or nodes over which experts are spread, to each of which a token is sent
            once, however many of its experts are there; None: once for each expert.
    """
    copies = mixture.experts_per_token * mixture.capacity
    if places is not None:
        # Places with at least one of a token's experts.
        met = places * (1 - (1 - 1 / places) ** mixture.experts_per_token)
        copies = np.minimum(copies, met)
    return np.asarray(
        jobs.tokens / jobs.layout.tp * copies * jobs.model.hidden_size * jobs.options.element_bytes
    )
