"""Groups of ranks, and the links of a cluster that each crosses.

Ranks are laid out tp innermost, then dp, then pp, or pp before dp; consecutive ranks fill a node. A
group is therefore given by its size and by its stride, the distance of its members in rank order.
"Node" means here a domain that messages leave only through network adapters: where links join
several nodes, all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search_spaces import Cluster, Collective, Nic
from trainer.plan.axes.mesh import RankGroup

from .constants import Array, Constants, constant

GB = 1e9


class MissingFactError(ValueError):
    """A cluster's facts do not say what a price needs; the message names the fact."""


@dataclass(frozen=True)
class LinkConstants(Constants):
    """Properties of links that a cluster's facts leave open."""

    # share of the nominal bandwidth that collectives reach inside a node
    node_share: float = constant(0.75, 0.25)
    # share of the adapters' nominal bandwidth that they reach between nodes
    inter_node_share: float = constant(0.75, 0.35)
    call_s: float = constant(25e-6, 0.7)  # start of a collective, before its first byte; s
    hop_s: float = constant(4e-6, 0.7)  # one step of a ring inside a node; s
    inter_node_hop_s: float = constant(20e-6, 0.8)  # one step of a ring between nodes; s


def group_of(size: ArrayLike, stride: ArrayLike = 1, world: ArrayLike | None = None) -> RankGroup:
    """A group from numbers or columns that broadcast against each other."""
    columns = [size, stride] if world is None else [size, stride, world]
    whole = np.broadcast_arrays(*[np.atleast_1d(np.asarray(c, np.float64)) for c in columns])
    return RankGroup(*whole)


def members_per_node(cluster: Cluster, group: RankGroup) -> Array:
    """Members of a group on one node.

    As many groups of the same kind as its stride share a node's adapters: Singh et al. 2024, eq. 7,
    has min(G_node, product of the sizes of the preceding groups) for it.
    """
    inside = np.maximum(1.0, np.floor(cluster.domain_gpus / group.stride))
    members = np.minimum(group.size, inside)
    straddles = (members > 1) & (members == group.size) & ~_holds(cluster.domain_gpus, group)
    return np.asarray(np.where(straddles, np.ceil(group.size / 2), members))


def crosses_nodes(cluster: Cluster, group: RankGroup) -> NDArray[np.bool_]:
    """Whether messages of the group go through network adapters."""
    return np.asarray((group.size > 1) & (group.size * group.stride > cluster.domain_gpus))


def level(cluster: Cluster, group: RankGroup) -> NDArray[np.int64]:
    """Index of the innermost of the machine's links that joins the whole group.

    The index after the last (1 where the facts list none) stands for the links between nodes.
    """
    spans = [link.gpus for link in cluster.links] or [cluster.gpus_per_node]
    found = np.full(group.size.shape, len(spans), np.int64)
    for index in reversed(range(len(spans))):
        found = np.where(_holds(min(spans[index], cluster.domain_gpus), group), index, found)
    return np.where(group.size > 1, found, 0)


@dataclass(frozen=True)
class Path:
    """The links that a group's messages cross; columns."""

    group: RankGroup  # whose path it is
    members: Array  # of the group on one node
    nodes: Array  # that the group is on
    node_bytes_per_s: Array  # bus bandwidth inside the node; inf where nothing is sent there
    nic_bytes_per_s: Array  # the group's part of its node's adapters; inf inside a node
    hop_s: Array  # one step inside the node
    inter_node_hop_s: float  # one step between nodes

    @property
    def ring_bytes_per_s(self) -> Array:
        """A ring is as fast as the slowest of its links."""
        return np.minimum(self.node_bytes_per_s, self.nic_bytes_per_s)

    @property
    def ring_latency_s(self) -> Array:
        """Once around: size - 1 hops, of which nodes - 1 are between nodes."""
        outside = self.nodes - 1
        inside = np.asarray(self.group.size - 1 - outside)
        return inside * self.hop_s + outside * self.inter_node_hop_s


def path_of(cluster: Cluster, constants: LinkConstants, group: RankGroup) -> Path:
    """The path of a collective's messages.

    Inside a node, measured bandwidth takes precedence over the nominal one, also for the part of a
    wider group that is on the node.

    Raises MissingFactError if a group crosses links that the cluster's facts do not state.
    """
    members = members_per_node(cluster, group)
    nodes = np.ceil(group.size / members)
    node_bytes_per_s, hop_s = inside_node(cluster, constants, level(cluster, group), members)
    for (gpus, on_nodes, stride), measured in measured_rings(cluster).items():
        if on_nodes == 1:
            rows = (members == gpus) & (group.stride == stride)
            node_bytes_per_s = np.where(rows, measured, node_bytes_per_s)
    nic_bytes_per_s = np.full(members.shape, np.inf)
    if np.any(nodes > 1):
        nic, gpus = nic_of(cluster), cluster.domain_gpus
        reached = constants.share("inter_node_share", nic.reached_share)
        every = nic.count * gpus / cluster.gpus_per_node
        # Groups side by side share them, and members reach those nearest to them.
        own = np.minimum(every / np.minimum(group.stride, gpus), np.ceil(every * members / gpus))
        nic_bytes_per_s = np.where(nodes > 1, own * nic.gb_per_s * GB * reached, np.inf)
    return Path(
        group,
        members,
        nodes,
        np.where(members > 1, node_bytes_per_s, np.inf),
        nic_bytes_per_s,
        hop_s,
        inter_node_hop_s(cluster, constants),
    )


def inside_node(
    cluster: Cluster, constants: LinkConstants, index: NDArray[np.int64], members: Array
) -> tuple[Array, Array]:
    """Bus bandwidth in bytes/s and seconds per hop of so many members, on a level of the links.

    Members of a group on several nodes are taken to span their node. Fully connected members use
    their links to all others at once: on Perlmutter a pair reaches 76 GB/s and four GPUs 225.
    """
    links = cluster.links
    if not links:
        if np.any(members > 1):
            raise MissingFactError(f"cluster {cluster.name} states no links between a node's GPUs")
        return np.full(index.shape, np.inf), constants.hop_s + np.zeros(index.shape)
    inside = np.minimum(index, len(links) - 1)
    nominal = np.array([link.gb_per_s for link in links])[inside] * GB
    connected = np.array([link.fully_connected for link in links])[inside]
    stated = np.array([link.latency_us or np.nan for link in links])[inside] * 1e-6
    width = np.where(connected, np.maximum(members - 1, 1), 1.0)
    return nominal * width * constants.node_share, np.where(
        np.isnan(stated), constants.hop_s, stated
    )


def measured_groups(cluster: Cluster) -> dict[tuple[int, int, int], list[Collective]]:
    """The measured collectives by (gpus, nodes, stride)."""
    groups: dict[tuple[int, int, int], list[Collective]] = {}
    for entry in cluster.measured:
        groups.setdefault((entry.gpus, entry.nodes, entry.stride), []).append(entry)
    return groups


def measured_rings(cluster: Cluster) -> dict[tuple[int, int, int], float]:
    """Measured bus bandwidth of the largest message by (gpus, nodes, stride); bytes/s."""
    found = {}
    for group, entries in measured_groups(cluster).items():
        if rings := [e for e in entries if e.operation not in ("all_to_all", "send")]:
            found[group] = max(rings, key=lambda entry: entry.size_mib).bus_gb_per_s * GB
    return found


def nic_of(cluster: Cluster) -> Nic:
    if cluster.nic is None:
        raise MissingFactError(
            f"cluster {cluster.name} states no nic, which groups on two nodes need"
        )
    return cluster.nic


def one_adapter(cluster: Cluster) -> Cluster:
    """The same nodes if all of their traffic went through one of their adapters."""
    if cluster.nic is None:
        return cluster
    # The stated share is of all adapters together and does not hold for one.
    alone = cluster.nic.model_copy(update={"count": 1, "reached_share": None})
    return cluster.model_copy(update={"nic": alone})


def inter_node_hop_s(cluster: Cluster, constants: LinkConstants) -> float:
    stated = cluster.nic.latency_us if cluster.nic else None
    return 1e-6 * stated if stated else constants.inter_node_hop_s


def _holds(gpus: int, group: RankGroup) -> NDArray[np.bool_]:
    """Whether every block of the group's ranks lies within aligned runs of so many GPUs."""
    block = group.size * group.stride
    inside = block <= gpus
    if group.world is not None:
        blocks = gpus / block  # not %, which is ten times slower on columns
        inside &= (blocks == np.floor(blocks)) | (group.world <= gpus)
    return np.asarray(inside)
