"""A cluster's facts from measured collectives, and warnings about suspicious ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from analysis.cost.collectives import bus_bytes_per_s
from analysis.cost.groups import LinkConstants, group_of
from foundation.quantities import significant
from search_spaces import Cluster, Collective, Link, Nic
from trainer.plan.exchange import Operation

RINGS = ("all_reduce", "all_gather", "reduce_scatter")
SUSPICIOUS = 0.25  # share of the nominal bandwidth; less is another class of link
LARGE_BYTES = 16 * 2**20  # smaller messages do not reach a link's bandwidth
FALLS_TO = 0.7  # share of the inner bandwidth below which a wider group has a link of its own
CONNECTED = 1.5  # times a pair's bandwidth, above which a node's GPUs are fully connected
SLOW_GPU = 0.85  # of the median GPU's rate
IN_NODE_CAUSES = (
    "direct access between GPUs may be off (NCCL_P2P_DISABLE, ACS in the firmware, a container "
    "without shared memory); or this node has PCIe where others of its GPU have a faster link: "
    "then correct `links`"
)
BETWEEN_NODES_CAUSES = (
    "the collective library's network plug-in may be missing (aws-ofi-nccl, or aws-ofi-rccl for "
    "AMD, on Slingshot; NCCL_DEBUG=INFO then prints NET/Socket), which has cost a factor of 20; or "
    "all ranks use one adapter (NCCL_SOCKET_IFNAME, NCCL_IB_HCA, --gpu-bind=closest)"
)


@dataclass(frozen=True)
class Point:
    """One measurement: seconds of the slowest group while all groups of its kind communicate."""

    operation: Operation
    gpus: int
    nodes: int
    stride: int
    size_bytes: int
    seconds: float

    @property
    def group(self) -> tuple[int, int, int]:
        """GPUs, nodes and stride."""
        return self.gpus, self.nodes, self.stride

    @property
    def bus_gb_per_s(self) -> float:
        """Bus bandwidth as in nccl-tests: bytes that one rank sends in a ring, over the time."""
        share = 1.0 if self.operation == "send" else (self.gpus - 1) / self.gpus
        sent = (2 if self.operation == "all_reduce" else 1) * share * self.size_bytes
        return sent / self.seconds / 1e9


def points(entries: Sequence[dict[str, Any]]) -> list[Point]:
    """The collectives in ``trainer.preflight``'s result."""
    return [Point(**p) for p in entries if p["operation"] in get_args(Operation)]


def collectives(measurements: Sequence[Point]) -> list[Collective]:
    """The measurements in the form of a cluster's facts."""
    return [
        Collective(
            operation=p.operation,
            gpus=p.gpus,
            nodes=p.nodes,
            stride=p.stride,
            size_mib=p.size_bytes / 2**20,
            bus_gb_per_s=significant(p.bus_gb_per_s),
        )
        for p in measurements
    ]


def best_ring(measurements: Sequence[Point], gpus: int, nodes: int, stride: int) -> Point | None:
    """The measurement with the largest bus bandwidth among a group's largest messages."""
    own = [p for p in measurements if p.group == (gpus, nodes, stride) and p.operation in RINGS]
    return max(own, key=lambda p: (p.size_bytes, p.bus_gb_per_s), default=None)


def derived_links(measurements: Sequence[Point], gpus_per_node: int) -> list[Link]:
    """Links inside a node without a data sheet.

    Groups of neighbours that are about equally fast share a link. The nominal bandwidth is the
    measured one over the share that the cost model expects collectives to reach.
    """
    share = LinkConstants().node_share
    found: list[tuple[int, float]] = []  # (gpus, GB/s), innermost first
    for gpus in sorted({p.gpus for p in measurements if p.nodes == 1 and p.stride == 1}):
        ring = best_ring(measurements, gpus, 1, 1)
        if ring is None:
            continue
        rate = ring.bus_gb_per_s
        if found and rate >= FALLS_TO * found[-1][1]:
            found[-1] = (gpus, found[-1][1])
        else:
            found.append((gpus, rate))
    if not found or found[-1][0] != gpus_per_node:
        return []
    pair, node = best_ring(measurements, 2, 1, 1), best_ring(measurements, gpus_per_node, 1, 1)
    connected = bool(
        len(found) == 1 and pair and node and node.bus_gb_per_s > CONNECTED * pair.bus_gb_per_s
    )
    latency_us = hop_us(measurements, gpus_per_node)
    return [
        Link(
            level="node" if gpus == gpus_per_node else f"group of {gpus}",
            gpus=gpus,
            gb_per_s=significant(rate / share),
            fully_connected=connected,
            latency_us=latency_us if gpus == gpus_per_node else None,
        )
        for gpus, rate in found
    ]


def derived_nic(measurements: Sequence[Point], gpus_per_node: int) -> Nic | None:
    """A node's adapters as one, from the fastest groups on two nodes; None without any."""
    rates = []
    for stride in sorted({p.stride for p in measurements if p.nodes == 2}):
        ring = best_ring(measurements, 2 * gpus_per_node // stride, 2, stride)
        if ring:  # ``stride`` such groups share the adapters
            rates.append(ring.bus_gb_per_s * stride)
    if not rates:
        return None
    return Nic(
        count=1,
        gb_per_s=significant(max(rates) / LinkConstants().inter_node_share),
        latency_us=inter_node_hop_us(measurements, gpus_per_node),
    )


def hop_us(measurements: Sequence[Point], gpus_per_node: int) -> float | None:
    """Time per further rank of a small all-gather inside a node; None if below the noise."""
    pair = _smallest_s(measurements, 2, 1, 1)
    node = _smallest_s(measurements, gpus_per_node, 1, 1)
    if pair is None or node is None or gpus_per_node <= 2 or node <= pair:
        return None
    return significant(1e6 * (node - pair) / (gpus_per_node - 2), 2)


def inter_node_hop_us(measurements: Sequence[Point], gpus_per_node: int) -> float | None:
    """Extra time of a small all-gather of two ranks on two nodes instead of one."""
    across = _smallest_s(measurements, 2, 2, gpus_per_node)
    inside = _smallest_s(measurements, 2, 1, 1)
    if across is None or inside is None or across <= inside:
        return None
    return significant(1e6 * (across - inside) + (hop_us(measurements, gpus_per_node) or 0.0), 2)


def _smallest_s(measurements: Sequence[Point], gpus: int, nodes: int, stride: int) -> float | None:
    own = [p for p in measurements if p.group == (gpus, nodes, stride)]
    gathers = [p for p in own if p.operation == "all_gather"]
    return min(gathers, key=lambda p: p.size_bytes).seconds if gathers else None


def link_warnings(measurements: Sequence[Point], nominal: Cluster) -> list[str]:
    """Warnings about the slowest links inside and between nodes, if far below their data sheet.

    Links that the ``nominal`` cluster lacks are not judged.
    """
    whole = LinkConstants(node_share=1.0, inter_node_share=1.0)
    data_sheet = nominal.model_copy(update={"measured": []})
    warnings = []
    for between in (False, True):
        if not (nominal.nic if between else nominal.links):
            continue
        slow: list[tuple[float, str]] = []
        for gpus, nodes, stride in sorted({p.group for p in measurements}):
            ring = best_ring(measurements, gpus, nodes, stride)
            if (nodes > 1) != between or ring is None or ring.size_bytes < LARGE_BYTES:
                continue
            if nodes > 1 and not nominal.links and gpus > nodes:
                continue  # its ring also uses links inside the nodes
            expected = float(bus_bytes_per_s(data_sheet, whole, group_of(gpus, stride))[0]) / 1e9
            slow.append((ring.bus_gb_per_s / expected, _slow(ring, expected)))
        share, worst = min(slow, default=(SUSPICIOUS, ""), key=lambda each: each[0])
        if share < SUSPICIOUS:
            warnings.append(f"{worst}: {BETWEEN_NODES_CAUSES if between else IN_NODE_CAUSES}")
    return warnings


def _slow(ring: Point, expected_gb_per_s: float) -> str:
    where = f"on {ring.nodes} nodes" if ring.nodes > 1 else "inside a node"
    return (
        f"{ring.operation} of {ring.gpus} GPUs {where} (stride {ring.stride}) reaches "
        f"{ring.bus_gb_per_s:.3g} GB/s, {100 * ring.bus_gb_per_s / expected_gb_per_s:.0f} % of "
        f"the {expected_gb_per_s:.3g} GB/s that the links should have"
    )


def slow_gpu_warnings(
    tflops: Sequence[float], hosts: Sequence[str], ranks_per_node: int
) -> list[str]:
    """Warnings about GPUs that are slower than the median in one product; ranks in order."""
    median = float(np.median(tflops))
    return [
        f"local rank {rank % ranks_per_node} on {hosts[rank]} computes at {rate:.4g} TFLOP/s, "
        f"the median is {median:.4g}: a clock or power limit, a hot or a shared device"
        for rank, rate in enumerate(tflops)
        if rate < SLOW_GPU * median
    ]
