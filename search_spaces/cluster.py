"""Facts of a cluster, for the rules and the cost model.

Rates are decimal (1 GB/s = 1e9 bytes/s) and per direction; memory is binary (GiB). "GPU" is what
one rank drives: on MI250X one of the card's two dies (GCD), on a CPU cluster a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidatorFunctionWrapHandler, WrapValidator, model_validator

from foundation.documents import read_document
from foundation.files import is_number
from foundation.records import Described, validate
from search_spaces.errors import SpaceError
from search_spaces.shipped import read_named, shipped_files
from trainer.plan.limits import MAX_GPUS_PER_NODE, MAX_NODES

# Wider than any machine's rates, and safe from overflow in products of such numbers.
Rate = Annotated[float, Field(gt=0, ge=1e-9, le=1e9)]
FROZEN = "frozen"  # context of validation: a run's own space, which older limits may have allowed
MAX_MEMORY_GIB = 8192  # of one rank; 81,559 is an H100's memory in MiB, as nvidia-smi prints it


def _as_in_older_runs(value: Any, limited: ValidatorFunctionWrapHandler, info: Any) -> float:
    """A number within limits, or, in a space that a run has frozen, as it is there."""
    if info.context == FROZEN and is_number(value) and 0 < value <= 1e9:
        return float(value)
    return float(limited(value))


class _Record(Described):
    model_config = ConfigDict(strict=False)


class Link(_Record):
    """One level of the node's hierarchy: the slowest link inside a group of so many GPUs."""

    level: str = Field(description="what the group is: card, neighbours, node")
    gpus: int = Field(ge=2, le=MAX_GPUS_PER_NODE)
    """GPUs in the group, counted from local rank 0 upwards; more than a node has if links join
    several nodes, as NVLink does in a rack"""
    gb_per_s: Rate = Field(description="between two GPUs of the group, per direction")
    fully_connected: bool = False
    """every pair has a link of its own, so that a group of n uses n - 1 of them per GPU; false
    if a GPU has gb_per_s to all others together (a switch, a single ring)"""
    latency_us: Rate | None = Field(default=None, description="of one hop of a ring")


class Nic(_Record):
    """Network adapters of one node."""

    count: int = Field(ge=1, le=1000)
    gb_per_s: Rate = Field(description="of one adapter, per direction")
    latency_us: Rate | None = Field(default=None, description="of one hop between nodes")
    reached_share: float | None = Field(default=None, gt=0, le=1)
    """share of the rate of all adapters that collectives of large messages reached over many
    nodes"""


class Collective(_Record):
    """One measured collective; bus bandwidth by the convention of nccl-tests.

    All groups of the same kind on the node work at once, as they do in training.
    """

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "any"]
    """any: all collectives without an entry of their own; send: from one rank of a pair to the
    other"""
    gpus: int = Field(ge=2, le=MAX_NODES * MAX_GPUS_PER_NODE)
    nodes: int = Field(ge=1, le=MAX_NODES)
    stride: int = Field(default=1, ge=1, le=MAX_NODES * MAX_GPUS_PER_NODE)
    """from one member's rank to the next one's"""
    size_mib: Rate
    bus_gb_per_s: Rate


class Cluster(_Record):
    """One kind of cluster. Optional facts are those that not every source states."""

    name: str = Field(min_length=1, max_length=200)
    source: str = Field(default="", description="where the facts are from")
    gpu: str = Field(default="", description="the device that one rank drives")
    num_nodes: int | None = Field(default=None, ge=1, le=MAX_NODES)
    """nodes that a job can have"""
    gpus_per_node: int = Field(ge=1, le=MAX_GPUS_PER_NODE)
    cpus_per_node: int | None = Field(default=None, ge=1, le=100_000)
    """cores a job may use"""
    shared_by: float = Field(default=1, ge=1, le=MAX_GPUS_PER_NODE)
    """ranks that share one processor, as processes on a CPU with fewer cores do: the others use
    what one leaves idle. The peaks are a rank's when all are busy"""
    compute_units: int | None = Field(default=None, ge=1, le=100_000)
    """of one GPU: streaming multiprocessors, or compute units; 1: a CPU"""
    power_watts: Rate | None = None
    """of one GPU under load: its thermal design power"""
    memory_gib: Annotated[
        float, Field(gt=0, ge=1e-9, le=MAX_MEMORY_GIB), WrapValidator(_as_in_older_runs)
    ] = Field(description="of one GPU")
    memory_gb_per_s: Rate | None = Field(default=None, description="of one GPU's memory")
    peak_bf16_tflops: Rate | None = None
    """of one GPU, advertised, dense; fp16 is the same"""
    peak_fp32_tflops: Rate | None = None
    gemm_bf16_tflops: Rate | None = None
    """best rate that a large matrix product reached"""
    peak_fp8_tflops: Rate | None = Field(default=None, description="of one GPU, advertised, dense")
    gemm_fp8_tflops: Rate | None = None
    """best rate that a large product of 8-bit numbers reached"""
    links: list[Link] = Field(default=[], max_length=16)
    """inside a node, innermost first; the outermost may join whole nodes"""
    nic: Nic | None = None
    host_link_gb_per_s: Rate | None = None
    """GPU to host memory, for what is offloaded. Default 31.5, PCIe Gen4"""
    host_memory_gib: Rate | None = None
    """of one node: what is offloaded must fit into it"""
    overlap: float | None = Field(default=None, ge=0.001, le=1)
    """share of its time that a matrix product hides of a collective that runs at the same time"""
    node_failures_per_day: Rate | None = None
    """of one node: failures that end a job on it. Default 0.0042, of two published clusters"""
    storage_gb_per_s: Rate | None = None
    """at which one node writes a checkpoint while all nodes of a job do"""
    price_per_node_hour: Rate | None = None
    """money, in any currency, per node and hour; the metric cost counts it"""
    price_per_kwh: Rate | None = None
    """price of energy, which cost adds; leave it out if the node-hour includes energy"""
    co2_grams_per_kwh: Rate | None = None
    """of the site's electricity; the metric co2 counts it"""
    measured: list[Collective] = Field(default=[], max_length=10_000)

    @model_validator(mode="after")
    def _consistent(self) -> Cluster:
        if self.peak_bf16_tflops is None and self.peak_fp32_tflops is None:
            raise ValueError("needs peak_bf16_tflops or peak_fp32_tflops")
        sizes = [link.gpus for link in self.links]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"links must grow from the innermost out: gpus {sizes}")
        if self.gpus_per_node > 1 and sizes and sizes[-1] % self.gpus_per_node:
            raise ValueError(
                f"the outermost link spans {sizes[-1]} GPUs, not gpus_per_node "
                f"{self.gpus_per_node}, or a multiple of it"
            )
        return self

    @property
    def is_cpu(self) -> bool:
        """Whether a rank computes on a CPU: it has one compute unit, a core."""
        return self.compute_units == 1

    @property
    def device(self) -> Literal["cpu", "cuda"] | None:
        """Torch's name of the device that a rank drives (cuda also for ROCm); None: not stated."""
        if self.is_cpu:
            return "cpu"
        return "cuda" if self.gpu else None

    def bill(self, node_s: Any, joules: Any) -> dict[str, Any]:
        """Metrics ``cost`` and ``co2`` (kg) of a job, as far as prices are stated.

        If its ``joules`` are unknown (None), metrics that need them are left out.
        """
        prices = self.price_per_node_hour or 0.0, self.price_per_kwh or 0.0
        found: dict[str, Any] = {}
        if any(prices) and (joules is not None or not prices[1]):
            found["cost"] = prices[0] * node_s / 3600
            if joules is not None:
                found["cost"] = found["cost"] + prices[1] * joules / 3.6e6
        if self.co2_grams_per_kwh and joules is not None:
            found["co2"] = self.co2_grams_per_kwh / 1000 * joules / 3.6e6
        return found

    @property
    def domain_gpus(self) -> int:
        """GPUs that reach each other without network adapters: of one node, or of several."""
        return max([self.gpus_per_node, *(link.gpus for link in self.links)])

    @property
    def memory_bytes(self) -> int:
        return int(self.memory_gib * 2**30)

    @classmethod
    def read(cls, path: Path) -> Cluster:
        """The cluster that a file describes, such as ``meshtune preflight`` writes.

        Raises SpaceError if it cannot be read, or a fact is missing, unknown or out of range.
        """
        return validate(cls, read_document(path, SpaceError))

    @classmethod
    def named(cls, name: str) -> Cluster:
        """A shipped cluster by its name, or the one that a file (``*.yaml``) describes.

        Raises SpaceError that begins with ``found``, if there is none.
        """
        return read_named(cls, "cluster", name)

    @classmethod
    def shipped(cls) -> dict[str, Cluster]:
        """The clusters that come with meshtune, by name."""
        found = [cls.read(file) for file in shipped_files("cluster").values()]
        return {cluster.name: cluster for cluster in found}
