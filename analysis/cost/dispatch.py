"""Tokens on their way to their experts and back: all-to-alls over the ranks of ``ep``."""

from __future__ import annotations

import numpy as np

from analysis.cost import collectives as links
from analysis.cost.experts import assigned_tokens, mixed_share
from analysis.cost.groups import RankGroup, members_per_node
from analysis.cost.jobs import BY_HABIT, FLEX, FULL, Array, Jobs, Mask
from analysis.cost.time_constants import TimeConstants
from search_spaces import Cluster, Framework
from trainer.plan.sizes import Mixture

LEAST_SHOWN = 0.05  # of communication that could all hide


def dispatch_s(
    jobs: Jobs, cluster: Cluster, framework: Framework, c: TimeConstants, device_s: Array
) -> Array:
    """Exposed seconds of one layer and micro-batch, in the mean over layers with and without.

    Each pass has a way there and one back, which the experts wait for unless they compute for
    another micro-batch meanwhile, and gathers and sums over the ranks that split an expert
    (Megatron Core, "Mixture of Experts"). In the order of ranks ``etp`` is innermost, then ``ep``.

    Args:
        device_s: of both passes of one layer on the device.
    """
    mixture = jobs.mixture
    if mixture is None:
        return np.zeros(len(jobs))
    passes = 2 + np.where(jobs.recompute == FULL, 1.0, 0.0)
    ways = 2 * passes * np.where(jobs.ep > 1, way_s(jobs, mixture, cluster, framework, c), 0.0)
    alone = c.exposed_dispatch * ways
    left = np.maximum(ways - c.overlap * device_s, LEAST_SHOWN * ways)
    # The first forward and the last backward pass have no other micro-batch beside them.
    beside = np.where(jobs.overlaps_dispatch, 1 - 1 / jobs.gas, 0.0)
    shown = beside * np.minimum(left, alone) + (1 - beside) * alone
    split = RankGroup(jobs.etp, np.ones(len(jobs)), jobs.world_size)
    rows = assigned_tokens(jobs, mixture) * jobs.hidden_size * jobs.element_bytes
    gather = links.all_gather_s(cluster, c, split, rows)
    scatter = links.reduce_scatter_s(cluster, c, split, rows)
    inner = np.where(jobs.etp > 1, gather + scatter, 0.0)
    return np.asarray(mixed_share(jobs, mixture) * (shown + passes * inner))


def way_s(
    jobs: Jobs, mixture: Mixture, cluster: Cluster, framework: Framework, c: TimeConstants
) -> Array:
    """Seconds of one way of a micro-batch's tokens.

    A token is sent to each of its experts; or once to each node that has one of them, and from
    there to its ranks at the same time (DeepSeek-AI 2024, section 3.2.2).
    """
    group = RankGroup(jobs.ep, jobs.etp, jobs.world_size)
    members = members_per_node(cluster, group)
    near = RankGroup(members, jobs.etp, jobs.world_size)
    plain = links.all_to_all_s(cluster, c, group, dispatched_bytes(jobs, mixture))
    inside = links.all_to_all_s(cluster, c, near, dispatched_bytes(jobs, mixture, jobs.ep))
    across = links.all_to_all_s(
        cluster, c, group, dispatched_bytes(jobs, mixture, jobs.ep / members)
    )
    once = np.where(members < jobs.ep, np.maximum(inside, across), inside)
    return np.where(_sends_once(jobs, framework), once, plain)


def dispatched_bytes(jobs: Jobs, mixture: Mixture, places: Array | None = None) -> Array:
    """What a rank sends in one pass of one layer, one way.

    Args:
        jobs: of which.
        mixture: theirs.
        places: ranks or nodes over which experts are spread, to each of which a token is sent
            once, however many of its experts are there; None: once for each expert.
    """
    copies = mixture.experts_per_token * mixture.capacity
    if places is not None:
        # Those that at least one of a token's experts is on.
        met = places * (1 - (1 - 1 / places) ** mixture.experts_per_token)
        copies = np.minimum(copies, met)
    return np.asarray(jobs.tokens / jobs.tp * copies * jobs.hidden_size * jobs.element_bytes)


def _sends_once(jobs: Jobs, framework: Framework) -> Mask:
    by_habit = jobs.dispatcher == BY_HABIT
    return np.where(by_habit, framework.sends_tokens_once, jobs.dispatcher == FLEX)
