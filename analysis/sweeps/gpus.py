"""Shipped clusters by the published name of their GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foundation.documents import as_written
from search_spaces import Cluster, Link, Nic


class UnknownGpuError(ValueError):
    """A table names a GPU of no known cluster."""


@dataclass(frozen=True)
class Known:
    """A shipped cluster, and facts in which the published one differs."""

    cluster: str
    differs: dict[str, Any] = field(default_factory=dict)


_A100_40GB = {"memory_gib": 40, "memory_gb_per_s": 1555}
# By spelling in lower case without spaces and signs. A cluster with the table's GPUs per node is
# preferred; else the first one is resized.
_GPUS: dict[str, list[Known]] = {
    "a10080gb": [Known("dgx_a100")],
    "a10040gb": [Known("perlmutter"), Known("dgx_a100", _A100_40GB)],
    "h10080gb": [Known("dgx_h100")],
    # The H100 with HBM2e and 500 W: NVIDIA's SXM board with the memory of its PCIe card.
    "h10096gbhbm2e500w": [Known("dgx_h100", {"memory_gib": 96, "memory_gb_per_s": 2400})],
    "h200": [Known("dgx_h200")],
    "b200": [Known("dgx_b200")],
    "b300": [Known("dgx_b300")],
    "gb200": [Known("gb200_nvl72")],
    "gb300": [Known("gb300_nvl72")],
    "mi300x": [Known("mi300x")],
    "mi355x": [Known("mi355x")],
    # The same with less power: 1000 W.
    "mi350x": [
        Known("mi355x", {"name": "mi350x", "peak_bf16_tflops": 2307, "peak_fp8_tflops": 4614})
    ],
    "gh200": [Known("alps")],
    "mi250xgcd": [Known("frontier")],
    "v10032gb": [Known("jean_zay_v100")],
    "v10016gb": [Known("jean_zay_v100", {"memory_gib": 16})],
}
_SPELLINGS = {
    "a100": "a10080gb",
    "h100": "h10080gb",
    "h200141gb": "h200",
    "gh200h10096gb": "gh200",
    "gh20096gb": "gh200",
    "mi250x": "mi250xgcd",
    "mi250xgcd64gb": "mi250xgcd",
    "mi250x64gb": "mi250xgcd",
    "v100": "v10032gb",
}


def cluster_of(gpu: str, gpus_per_node: int | None = None) -> Cluster:
    """The cluster for a GPU's published name, brackets and SXM versions ignored; or of a cluster's
    file, as ``meshtune preflight`` writes it. A resized node keeps each GPU's share of the network.

    Raises UnknownGpuError, which lists the known spellings.
    """
    if gpu.endswith(".yaml"):
        return Cluster.read(Path(gpu))
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*|sxm\d?|nvidia|amd|instinct", "", gpu.lower()))
    plain = _SPELLINGS.get(plain, plain)
    if plain not in _GPUS:
        names = ", ".join(sorted({*_GPUS, *_SPELLINGS}))
        raise UnknownGpuError(
            f"found gpu {as_written(gpu)}, accepted (any case and signs): {names}, "
            "or the path of a cluster's file *.yaml"
        )
    found = [Cluster.named(k.cluster).model_copy(update=_named(k)) for k in _GPUS[plain]]
    if gpus_per_node is None:
        return found[0]
    fitting = [c for c in found if c.gpus_per_node == gpus_per_node]
    return fitting[0] if fitting else resized(found[0], gpus_per_node)


def _named(known: Known) -> dict[str, Any]:
    if not known.differs:
        return {}
    if "name" in known.differs:
        return known.differs
    return {"name": f"{known.cluster}/{known.differs['memory_gib']}GiB", **known.differs}


def resized(cluster: Cluster, gpus_per_node: int) -> Cluster:
    """The same GPUs in nodes of another size, with the same share of the network each."""
    inner = [link for link in cluster.links if link.gpus < gpus_per_node]
    outer = next((link for link in cluster.links if link.gpus >= gpus_per_node), None)
    widest = outer or next(reversed(cluster.links), None)
    links = inner
    if gpus_per_node > 1 and widest is not None:
        links = [*inner, Link(level="node", gpus=gpus_per_node, gb_per_s=widest.gb_per_s)]
    nic = cluster.nic
    if nic is not None:
        share = nic.count * nic.gb_per_s / cluster.gpus_per_node
        nic = Nic(count=gpus_per_node, gb_per_s=share, reached_share=nic.reached_share)
    name = f"{cluster.name}/{gpus_per_node} a node"
    update = {"name": name, "gpus_per_node": gpus_per_node, "links": links, "nic": nic}
    return cluster.model_copy(update={**update, "measured": []})


def with_network(cluster: Cluster, adapters: int, gb_per_s: float) -> Cluster:
    """The same nodes with other network adapters."""
    nic = Nic(count=adapters, gb_per_s=gb_per_s)
    return cluster.model_copy(
        update={"name": f"{cluster.name}/{adapters}x{gb_per_s:g}", "nic": nic}
    )
