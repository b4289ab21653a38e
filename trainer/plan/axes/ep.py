"""Expert parallelism: a mixture's experts spread over ranks, and tokens dispatched to them.

As in Megatron Core: ``ep`` ranks are taken from data and context parallelism, so the world is no
larger. Experts' matrices are split over ``etp`` ranks, by default ``tp``; ``etp`` is innermost,
then ``ep``. ``tp cp dp / (ep etp)`` ranks hold the same experts and share their gradients and
states (expert data parallelism). The built-in trainer has ``etp`` 1: to its experts tensor
parallelism with split sequences is one more axis of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainer.plan.axes.dp import Holders, dense_holders
from trainer.plan.axes.mesh import RankGroup
from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import BY_HABIT, FLEX, SELECTIVE, Array, Jobs, Mask
from trainer.plan.sizes import Mixture, expert_weights, ffn_weights, mixed_layers, stage_weights
from trainer.plan.states import DEGREES, Degrees, degree_among


def all_holders(jobs: Jobs) -> list[Holders]:
    """Holders of dense parameters, and of experts if there are any."""
    dense = [dense_holders(jobs)]
    return dense if jobs.model.mixture is None else [*dense, expert_holders(jobs)]


def expert_holders(jobs: Jobs) -> Holders:
    """Ranks that hold the same experts. States that are sharded over all dense holders are sharded
    over all holders of experts."""
    layout, placement = jobs.layout, jobs.placement
    divisor = layout.ep * layout.etp
    copies = layout.tp * layout.cp * layout.dp / divisor
    fewer = layout.replicas / copies
    degrees = Degrees(*(degree_among(getattr(placement, name), fewer, copies) for name in DEGREES))
    stride = layout.axes.of_states.stride("dp") / layout.tp * divisor
    return Holders(copies, stride, divisor, degrees, layout.axes.world_size)


def mixed_share(jobs: Jobs, mixture: Mixture) -> Array:
    """Fraction of layers with experts."""
    return np.asarray(mixed_layers(jobs.model, mixture) / jobs.model.num_layers)


def rank_parameters(
    jobs: Jobs, layers: Array, tables: Array | float, first: Mask
) -> tuple[Array, Array]:
    """Dense parameters and routed experts of a pipeline stage per rank, before state sharding.

    The stage has ``layers`` layers and 0, 1 or 2 vocabulary ``tables``; a mixture's dense layers
    are on the ``first`` stage.
    """
    model, layout, mixture = jobs.model, jobs.layout, jobs.model.mixture
    plain = np.asarray(stage_weights(model, layers, tables, layout.layer_ranks))
    if mixture is None:
        return plain, np.zeros(len(jobs))
    some = first & (mixture.num_experts > 0)
    dense = np.where(some, np.minimum(mixture.dense_layers, layers), 0.0)
    # Extra weights of a dense layer over what ``stage_weights`` counts for one with experts.
    beyond = ffn_weights(model, model.ffn_size - mixture.shared_ffn_size)
    beyond = beyond - mixture.num_experts * model.hidden_size
    experts = (layers - dense) * expert_weights(model, mixture) / (layout.ep * layout.etp)
    return plain + dense * beyond / layout.tp, experts


def assigned_tokens(jobs: Jobs, mixture: Mixture) -> Array:
    """Token-expert pairs that one rank's experts compute per micro-batch, with a balanced router.

    Tokens are split over ``tp`` before dispatch and gathered over ``etp`` after it.
    """
    gathered = jobs.tokens * jobs.layout.etp / jobs.layout.tp
    return np.asarray(gathered * mixture.experts_per_token * mixture.capacity)


def local_experts(jobs: Jobs, mixture: Mixture) -> Array:
    """Experts per layer and rank; 1 without experts."""
    return np.asarray(np.maximum(mixture.num_experts / jobs.layout.ep, 1))


def activation_bytes(jobs: Jobs, mixture: Mixture, fused: bool = False) -> Array:
    """Activations that one layer's experts keep per micro-batch: inputs, inner activations, and
    outputs, which the router's gradient needs. ``fused``: the gate's kernel applies the router's
    weights, so neither silu(gate) nor the outputs are kept; in FP8 the inputs of products are kept
    in 8 bits."""
    inner = (
        np.where(jobs.model.gated, 3 if fused else 4, 2) * mixture.expert_ffn_size / jobs.layout.etp
    )
    kept = jobs.options.element_bytes * ((1 if fused else 2) * jobs.model.hidden_size + inner)
    if fused:
        read = jobs.model.hidden_size + mixture.expert_ffn_size / jobs.layout.etp
        kept = kept - np.where(jobs.options.fp8, read, 0.0)
    return np.asarray(assigned_tokens(jobs, mixture) * kept)


class LayerExchanges(NamedTuple):
    """Exchanges of a layer with experts on one micro-batch, all passes."""

    plain: Exchange  # dispatch and combine, a token sent once per expert
    # the same with a token sent once per node and forwarded inside it, both at the same time
    # (DeepSeek-AI 2024, section 3.2.2); ``across`` is empty within one node
    inside: Exchange
    across: Exchange
    once: Mask  # whether tokens are sent once per node
    hidden: Array  # fraction of micro-batches whose dispatch runs behind another one's layers
    # all-gather of inputs and reduce-scatter of outputs over ``etp``
    split: tuple[Exchange, Exchange]


def layer_exchanges(
    jobs: Jobs, habits: Habits, mixture: Mixture, members: Callable[[RankGroup], Array]
) -> LayerExchanges:
    """Dispatch and combine of every pass (Megatron Core); ``members``: a group's ranks per node."""
    layout, dispatcher = jobs.layout, jobs.options.dispatcher
    again = (jobs.options.recompute == SELECTIVE) & jobs.repeats("moe")
    passes = np.where(jobs.repeats_layers | again, 3.0, 2.0)

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
        # The first forward and the last backward pass have no other micro-batch to overlap.
        hidden=np.where(jobs.options.overlaps_dispatch, 1 - 1 / layout.gas, 0.0),
        split=(
            Exchange("experts", "all_gather", split, rows, passes),
            Exchange("experts", "reduce_scatter", split, rows, passes),
        ),
    )


def dispatched_bytes(jobs: Jobs, mixture: Mixture, places: Array | None = None) -> Array:
    """Bytes that a rank sends per dispatch, or combine, of one micro-batch.

    ``places``: ranks or nodes that experts are spread over, if a token is sent once to each; None:
    it is sent once per expert.
    """
    copies = mixture.experts_per_token * mixture.capacity
    if places is not None:
        # Expected number of places with at least one of a token's experts.
        met = places * (1 - (1 - 1 / places) ** mixture.experts_per_token)
        copies = np.minimum(copies, met)
    return np.asarray(
        jobs.tokens / jobs.layout.tp * copies * jobs.model.hidden_size * jobs.options.element_bytes
    )
