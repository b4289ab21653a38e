"""A cluster's facts: what the search checks against and the cost model computes with.

Rates are decimal (1 GB/s = 1e9 bytes/s) and per direction; memory is binary (GiB). "GPU" is what
one rank drives: on MI250X one of the card's two dies (GCD), on a CPU cluster a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Link(_Record):
    """One level of the node's hierarchy: the slowest link inside a group of so many GPUs."""

    level: str = Field(description="what the group is: card, neighbours, node")
    gpus: int = Field(ge=2, description="GPUs in the group, counted from local rank 0 upwards")
    gb_per_s: float = Field(gt=0, description="between two GPUs of the group, per direction")
    fully_connected: bool = Field(
        default=False,
        description="every pair has a link of its own, so that a group of n uses n - 1 of them per "
        "GPU; false where a GPU has gb_per_s to all others together (a switch, a single ring)",
    )
    latency_us: float | None = Field(default=None, gt=0, description="of one hop of a ring")


class Nic(_Record):
    """Network adapters of one node."""

    count: int = Field(ge=1)
    gb_per_s: float = Field(gt=0, description="of one adapter, per direction")
    latency_us: float | None = Field(default=None, gt=0, description="of one hop between nodes")


class Collective(_Record):
    """One measured collective; bus bandwidth by the convention of nccl-tests.

    All groups of the same kind on the node work at once, as they do in training.
    """

    operation: Literal[
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "any"
    ] = Field(
        description="any: stands for all collectives that have no entry of their own; send: from "
        "one rank of a pair to the other"
    )
    gpus: int = Field(ge=2)
    nodes: int = Field(ge=1)
    stride: int = Field(default=1, ge=1, description="from one member's rank to the next one's")
    size_mib: float = Field(gt=0)
    bus_gb_per_s: float = Field(gt=0)


class Cluster(_Record):
    """One kind of cluster. Optional facts are those that not every source states."""

    name: str = Field(min_length=1)
    source: str = Field(default="", description="where the facts are from")
    gpu: str = Field(default="", description="the device that one rank drives")
    num_nodes: int | None = Field(default=None, ge=1, description="nodes that a job can have")
    gpus_per_node: int = Field(ge=1)
    cpus_per_node: int | None = Field(default=None, ge=1, description="cores a job may use")
    shared_by: float = Field(
        default=1,
        ge=1,
        description="ranks that share one processor, as processes on a CPU with fewer cores do: "
        "what one leaves idle the others use. The peaks are what a rank gets when all are busy",
    )
    compute_units: int | None = Field(
        default=None, ge=1, description="of one GPU: streaming multiprocessors, or compute units"
    )
    power_watts: float | None = Field(
        default=None, gt=0, description="of one GPU under load: its thermal design power"
    )
    memory_gib: float = Field(gt=0, description="of one GPU")
    memory_gb_per_s: float | None = Field(default=None, gt=0, description="of one GPU's memory")
    peak_bf16_tflops: float | None = Field(
        default=None, gt=0, description="of one GPU, advertised, dense; fp16 is the same"
    )
    peak_fp32_tflops: float | None = Field(default=None, gt=0)
    gemm_bf16_tflops: float | None = Field(
        default=None, gt=0, description="best that a large matrix product was seen to reach"
    )
    links: list[Link] = Field(default=[], description="inside a node, innermost first")
    nic: Nic | None = None
    host_link_gb_per_s: float | None = Field(default=None, gt=0, description="GPU to host memory")
    measured: list[Collective] = []

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        if self.peak_bf16_tflops is None and self.peak_fp32_tflops is None:
            raise ValueError("needs peak_bf16_tflops or peak_fp32_tflops")
        sizes = [link.gpus for link in self.links]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"links must grow from the innermost out: gpus {sizes}")
        if self.gpus_per_node > 1 and sizes and sizes[-1] != self.gpus_per_node:
            raise ValueError(
                f"the outermost link spans {sizes[-1]} GPUs, not gpus_per_node {self.gpus_per_node}"
            )
        return self

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)

    def peak_tflops(self, precision: str) -> float:
        """Advertised peak of one GPU for ``fp32``, ``bf16`` or ``fp16``; TFLOP/s.

        Raises:
            ValueError: if the cluster's facts do not state it.
        """
        peak = self.peak_fp32_tflops if precision == "fp32" else self.peak_bf16_tflops
        if peak is None:
            raise ValueError(f"cluster {self.name} states no peak for {precision}")
        return peak


_SHIPPED = Path(__file__).with_name("clusters")


def read_cluster(path: Path) -> Cluster:
    """The cluster that a file of its own describes, such as ``meshtune preflight`` writes.

    Raises:
        ValueError: if a fact is missing, unknown or out of range.
    """
    return Cluster.model_validate(yaml.safe_load(path.read_text()))


def shipped_cluster(name: str) -> Cluster:
    """One of the clusters that come with meshtune."""
    return read_cluster(_SHIPPED / f"{name}.yaml")


def shipped_clusters() -> dict[str, Cluster]:
    """The clusters that come with meshtune, by name."""
    found = [read_cluster(path) for path in sorted(_SHIPPED.glob("*.yaml"))]
    return {cluster.name: cluster for cluster in found}
