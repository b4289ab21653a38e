"""Shipped clusters by the published name of their GPU."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from foundation.documents import as_written, read_document
from search_spaces import Cluster, Link, Nic


class UnknownGpuError(ValueError):
    """A table names a GPU of no known cluster."""


@cache
def _known() -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Clusters and their changed facts by a GPU's spelling; and alternative spellings."""
    content = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
    return content["gpus"], content["spellings"]


def _cluster(cluster: str, **differs: Any) -> Cluster:
    return Cluster.named(cluster).model_copy(update=differs)


def cluster_of(gpu: str, gpus_per_node: int | None = None) -> Cluster:
    """The cluster of a GPU's published name, without brackets and SXM versions, or of a cluster
    file from ``meshtune preflight``. A resized node keeps each GPU's share of the network.

    Raises UnknownGpuError, which lists the known spellings.
    """
    if gpu.endswith(".yaml"):
        return Cluster.read(Path(gpu))
    plain = re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*|sxm\d?|nvidia|amd|instinct", "", gpu.lower()))
    gpus, spellings = _known()
    plain = spellings.get(plain, plain)
    if plain not in gpus:
        names = ", ".join(sorted({*gpus, *spellings}))
        raise UnknownGpuError(
            f"found gpu {as_written(gpu)}, accepted (any case and signs): {names}, "
            "or the path of a cluster's file *.yaml"
        )
    found = [_cluster(**each) for each in gpus[plain]]
    if gpus_per_node is None:
        return found[0]
    fitting = [c for c in found if c.gpus_per_node == gpus_per_node]
    return fitting[0] if fitting else resized(found[0], gpus_per_node)


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
    nic = Nic(count=adapters, gb_per_s=gb_per_s)
    return cluster.model_copy(
        update={"name": f"{cluster.name}/{adapters}x{gb_per_s:g}", "nic": nic}
    )
