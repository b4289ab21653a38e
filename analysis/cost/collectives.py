"""Time of collectives, by the links that they cross.

A collective takes its start, a latency per hop, and its volume over the bandwidth of the slowest
link on its path (Thakur et al. 2005, cited by Singh et al. 2024, V-B). Groups that work at once
share a node's network adapters (Singh et al. 2024, eq. 7). Where the cluster's facts hold a
measurement of the same group, it replaces the formula: on some nodes bandwidth neither grows nor
falls with the size of the group.

In every function ``num_bytes`` is a column or one number. A group of one rank, or of no bytes,
takes no time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from analysis.cost import groups
from analysis.cost.constants import Array
from analysis.cost.groups import LinkConstants, Path
from search_spaces import Cluster, Collective
from trainer.plan.axes.mesh import RankGroup
from trainer.plan.exchange import Operation, share_sent

MIB = 2.0**20


def collective_s(
    operation: Operation,
    cluster: Cluster,
    constants: LinkConstants,
    group: RankGroup,
    num_bytes: ArrayLike,
) -> Array:
    """Seconds of a collective: by the formula, or as measured on the same group.

    ``num_bytes`` are those of the whole tensor; for an all-to-all, of each rank's own tensor.
    """
    path = groups.path_of(cluster, constants, group)
    num_bytes = np.asarray(num_bytes, np.float64)
    latency_s, formula_s = _FORMULAS[operation](path, constants.call_s, num_bytes)
    if not cluster.measured:
        return np.where((num_bytes <= 0) | (group.size <= 1), 0.0, formula_s)
    columns = (num_bytes, group.size, group.stride, path.nodes)
    shape = np.broadcast_shapes(np.shape(formula_s)[-1:], *map(np.shape, columns))
    sent, size, stride, nodes = (np.broadcast_to(column, shape) for column in columns)
    # Times may be those of several constants at once: of shape (constants, rows).
    taken = np.array(np.broadcast_to(formula_s, np.shape(formula_s)[:-1] + shape))
    start_s = np.broadcast_to(latency_s, taken.shape)
    for key, entries in groups.measured_groups(cluster).items():
        own = [entry for entry in entries if entry.operation == operation]
        own = own or [entry for entry in entries if entry.operation == "any"]
        rows = np.flatnonzero((size == key[0]) & (nodes == key[1]) & (stride == key[2]))
        if own and rows.size:
            # These rows differ in their bytes only, so they have one latency.
            latency = start_s[..., rows[:1]]
            taken[..., rows] = _interpolated_s(own, operation, latency, sent[rows])
    taken[..., (sent <= 0) | (size <= 1)] = 0.0
    return taken


def _once_around(path: Path, call_s: float, num_bytes: Array) -> tuple[Array, Array]:
    """A ring's size - 1 steps: (size - 1) / size of the whole tensor over every link."""
    latency_s = call_s + path.ring_latency_s
    sent = share_sent(path.group.size) * num_bytes
    return latency_s, latency_s + sent / path.ring_bytes_per_s


def _all_reduce(path: Path, call_s: float, num_bytes: Array) -> tuple[Array, Array]:
    """The faster of a ring (reduce-scatter, then all-gather) and of a hierarchy.

    The hierarchy reduces inside each node, goes up and down a binary tree of nodes, and broadcasts
    inside each node. NCCL chooses between the same two. The hierarchy sends 2 (N - 1) / N of the
    bytes out of each of N nodes and not 2 (n - 1) / n, which is why two nodes can measure more than
    their adapters' bandwidth, and its latency grows with the logarithm of N.
    """
    ring_latency_s = call_s + 2 * path.ring_latency_s
    ring_s = ring_latency_s + 2 * share_sent(path.group.size) * num_bytes / path.ring_bytes_per_s
    tree_latency_s = call_s + 2 * (
        (path.members - 1) * path.hop_s + np.ceil(np.log2(path.nodes)) * path.inter_node_hop_s
    )
    per_byte_s = np.maximum(
        share_sent(path.nodes) / path.nic_bytes_per_s,
        share_sent(path.members) / path.node_bytes_per_s,
    )
    tree_s = tree_latency_s + 2 * per_byte_s * num_bytes
    return np.minimum(ring_latency_s, tree_latency_s), np.minimum(ring_s, tree_s)


def _all_to_all(path: Path, call_s: float, num_bytes: Array) -> tuple[Array, Array]:
    """Every rank sends 1 / size of its bytes to every rank, a message for each peer.

    Inside the node and between nodes at the same time.
    """
    size = path.group.size
    inside = (path.members - 1) / size
    # A node's members send out together, over the part of its adapters that is theirs.
    outside = path.members * (size - path.members) / size
    per_byte_s = np.maximum(inside / path.node_bytes_per_s, outside / path.nic_bytes_per_s)
    latency_s = call_s + (size - 1) * path.hop_s
    latency_s = latency_s + np.where(path.nodes > 1, path.inter_node_hop_s, 0.0)
    return latency_s, latency_s + per_byte_s * num_bytes


_FORMULAS: dict[str, Callable[[Path, float, Array], tuple[Array, Array]]] = {
    "all_gather": _once_around,
    "reduce_scatter": _once_around,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
}
"""Latency and total seconds of an operation, by path, seconds to start a call, and bytes."""


def send_s(
    cluster: Cluster,
    constants: LinkConstants,
    stride: ArrayLike,
    num_bytes: ArrayLike,
    size: ArrayLike = 2,
) -> Array:
    """Seconds to send from one rank to the next of its group, over the slowest such link.

    ``stride`` ranks at a node's edge send at once and share its adapters; one rank alone uses only
    its own adapter.

    Args:
        stride: from a rank to the next: tp * dp between pipeline stages.
        num_bytes: of one rank's message.
        size: number of pipeline stages. In a long chain some neighbours are on different nodes.
    """
    chain = groups.group_of(size, stride)
    num_bytes = np.asarray(num_bytes, np.float64)
    index = groups.level(cluster, chain)
    crosses = index >= max(1, len(cluster.links))
    pair = np.where((chain.size > 1) & ~crosses, 2.0, 1.0)
    bytes_per_s, hop_s = groups.inside_node(cluster, constants, index, pair)
    if crosses.any():
        nic = groups.nic_of(cluster)
        senders = np.minimum(chain.stride, cluster.gpus_per_node)
        adapters = np.minimum(nic.count / senders, np.ceil(nic.count / cluster.gpus_per_node))
        between = adapters * nic.gb_per_s * groups.GB * constants.inter_node_share
        bytes_per_s = np.where(crosses, between, bytes_per_s)
        hop_s = np.where(crosses, groups.inter_node_hop_s(cluster, constants), hop_s)
    taken = constants.call_s + hop_s + num_bytes / bytes_per_s
    for (_, nodes, stride), entries in groups.measured_groups(cluster).items():
        if own := [entry for entry in entries if entry.operation == "send"]:
            # Inside a node a pair at the same stride was measured, between nodes all pairs at once:
            # that holds where at least as many ranks send. The measured time includes the start.
            rows = ~crosses & (chain.stride == stride) if nodes == 1 else crosses
            sent = np.broadcast_to(num_bytes, rows.shape)
            measured_s = _interpolated_s(own, "send", np.zeros(1), sent)
            taken = np.where(rows & (chain.stride >= stride), measured_s, taken)
    return np.where((num_bytes > 0) & (chain.size > 1), taken, 0.0)


def bus_bytes_per_s(cluster: Cluster, constants: LinkConstants, group: RankGroup) -> Array:
    """Bandwidth of a ring for large messages: that of the slowest link that it crosses.

    For measured groups that of their largest message; inf for a group of one.
    """
    path = groups.path_of(cluster, constants, group)
    bandwidth = path.ring_bytes_per_s
    for (gpus, nodes, stride), measured in groups.measured_rings(cluster).items():
        rows = (group.size == gpus) & (path.nodes == nodes) & (group.stride == stride)
        bandwidth = np.where(rows, measured, bandwidth)
    return bandwidth


def _interpolated_s(
    entries: list[Collective], operation: Operation, latency_s: Array, num_bytes: Array
) -> Array:
    """Latency plus a transfer time interpolated between measured ones; seconds, shape (..., n).

    The logarithm of the transfer time is linear in that of the size; outside the measured sizes
    the nearest one's bandwidth holds. ``entries`` are of one group; ``latency_s`` has the shape
    (..., 1), for one record of constants or several.
    """
    entries = sorted(entries, key=lambda entry: entry.size_mib)
    sizes = np.array([entry.size_mib for entry in entries]) * MIB
    bus = np.array([entry.bus_gb_per_s for entry in entries]) * groups.GB
    volume = (
        (2 if operation == "all_reduce" else 1)
        * (1.0 if operation == "send" else share_sent(np.array(entries[0].gpus, np.float64)))
        * sizes
    )
    measured_s = volume / bus
    # A latency above the shortest measurement would leave no time for the bytes.
    latency_s = np.minimum(latency_s, 0.9 * measured_s.min())
    log_transfers = np.log(np.maximum.accumulate(measured_s - latency_s, axis=-1))
    some = np.maximum(num_bytes, 1.0)
    place = np.interp(np.log(some), np.log(sizes), np.arange(len(sizes)))
    below = place.astype(int)
    above, share = np.minimum(below + 1, len(sizes) - 1), place - below
    within = np.exp((1 - share) * log_transfers[..., below] + share * log_transfers[..., above])
    outside = np.minimum(some / sizes[0], 1.0) * np.maximum(some / sizes[-1], 1.0)
    return np.asarray(latency_s + within * outside)
