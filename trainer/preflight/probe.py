"""Measures a rank's device and the links between ranks; all ranks call everything together.

All groups of a shape work at once, as in training; a figure is that of the slowest group.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import linear

from trainer.parallel.collectives import Group, Traffic
from trainer.plan.axes.mesh import RankGroup
from trainer.plan.placement import Level
from trainer.runtime.device import Device
from trainer.runtime.peers import RankEnvironment

ROUNDS = 3  # their median is reported
MAX_REPEATS = 200  # calls in a round
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class GroupShape:
    """Shape of a group of ranks; ranks of a node are consecutive."""

    gpus: int
    nodes: int  # over which they are spread
    stride: int  # from one member's rank to the next one's

    @property
    def operations(self) -> tuple[str, ...]:
        """Operations measured in such groups, for ``Links.seconds``."""
        return (*OPERATIONS, "send") if self.gpus == 2 else OPERATIONS

    def members(self, rank: int, world_size: int) -> list[int]:
        """The ranks of ``rank``'s group; none if its block of ranks is not full."""
        ranks = RankGroup(self.gpus, self.stride).of(rank)
        return [*ranks] if ranks.stop - rank % self.stride <= world_size else []


def group_shapes(num_nodes: int, ranks_per_node: int, quick: bool = False) -> list[GroupShape]:
    """Groups as tensor, data and pipeline parallelism make them: inside a node, then across.

    ``quick``: only pairs and whole nodes, and one count of nodes.
    """
    divisors = [d for d in range(1, ranks_per_node + 1) if ranks_per_node % d == 0]
    inside = [
        GroupShape(gpus, 1, stride)
        for stride in divisors
        for gpus in divisors
        if gpus > 1 and ranks_per_node % (gpus * stride) == 0
    ]
    counts = [2**k for k in range(1, num_nodes.bit_length()) if 2**k < num_nodes]
    counts += [num_nodes] if num_nodes > 1 else []
    if quick:
        whole_node = GroupShape(ranks_per_node, 1, 1)
        inside = [s for s in inside if s.gpus == 2 or s == whole_node]
        counts, divisors = counts[-1:], sorted({1, ranks_per_node})
    across = [
        GroupShape(nodes * ranks_per_node // stride, nodes, stride)
        for nodes in counts
        for stride in divisors
    ]
    return inside + across


class Probe:
    """Times calls on all ranks; one measurement takes about ``seconds``."""

    def __init__(
        self, device: Device, place: RankEnvironment, seconds: float, timeout_s: float
    ) -> None:
        self.device, self.place = device, place
        self.seconds, self.timeout_s = seconds, timeout_s

    def times_s(self, call: Callable[[], object]) -> list[float]:
        """Seconds of a call on each rank: the median of the rounds."""
        call()
        call()  # the first ones make communicators and choose kernels
        slowest_s = max(self._round(call, 1))
        repeats = int(self.seconds / ROUNDS / max(slowest_s, 1e-7))
        repeats = min(max(repeats, 1), MAX_REPEATS)
        rounds = [self._round(call, repeats) for _ in range(ROUNDS)]
        return [statistics.median(own) for own in zip(*rounds, strict=True)]

    def _round(self, call: Callable[[], object], repeats: int) -> list[float]:
        """Seconds of a call on each rank; all ranks run it at the same time."""
        begin_s = self.device.clock()
        for _ in range(repeats):
            call()
        return self._from_all((self.device.clock() - begin_s) / repeats)

    def _from_all(self, value: float) -> list[float]:
        if self.place.world_size == 1:
            return [value]
        own = torch.tensor([value], dtype=torch.float64, device=self.device.torch)
        every = own.new_empty(self.place.world_size)
        dist.all_gather_single(every, own)
        return every.tolist()

    def gemm_tflops(self, rows: int, columns: int, inner: int, dtype: torch.dtype) -> list[float]:
        """TFLOP/s of a linear layer's product on each rank, measured on all ranks at once."""
        x = torch.randn(rows, inner, dtype=dtype, device=self.device.torch)
        weight = torch.randn(columns, inner, dtype=dtype, device=self.device.torch)
        flops = 2.0 * rows * columns * inner
        return [flops / s / 1e12 for s in self.times_s(lambda: linear(x, weight))]

    def copy_gb_per_s(self, num_bytes: int) -> list[float]:
        """Memory traffic of a copy on each rank: every byte counts as read and as written."""
        source = torch.ones(num_bytes // 4, device=self.device.torch)
        target = torch.empty_like(source)
        return [2 * num_bytes / s / 1e9 for s in self.times_s(lambda: target.copy_(source))]

    def host_gb_per_s(self, num_bytes: int) -> list[float]:
        """Rate of copies from host memory to the device on each rank, all at once."""
        source = torch.ones(num_bytes // 4, pin_memory=self.device.type == "cuda")
        target = torch.empty_like(source, device=self.device.torch, pin_memory=False)
        calls = self.times_s(lambda: target.copy_(source, non_blocking=True))
        return [num_bytes / s / 1e9 for s in calls]


class Links:
    """The groups of one shape, each with a communicator of its own; free it with ``close``."""

    def __init__(self, probe: Probe, shape: GroupShape) -> None:
        self.probe, self.shape = probe, shape
        place = probe.place
        ranks = shape.members(place.rank, place.world_size)
        self.group: Group | None = None
        if ranks:
            timeout = timedelta(seconds=probe.timeout_s)
            # Each group by itself: a thousand pairs need not wait for each other.
            handle = dist.new_group(ranks, timeout=timeout, use_local_synchronization=True)
            level = Level.INTER_NODE if shape.nodes > 1 else Level.NODE
            self.group = Group(handle, ranks, level, Traffic())

    def close(self) -> None:
        if self.group is not None:
            dist.destroy_process_group(self.group.handle)

    def seconds(self, operation: str, num_bytes: int) -> float:
        """Seconds of one operation in the slowest group.

        ``operation``: of ``GroupShape.operations``; ``num_bytes``: of the whole tensor, as in
        nccl-tests.
        """
        device, gpus = self.probe.device, self.shape.gpus
        dtype = device.half if device.type == "cuda" else torch.float32
        count = max(1, num_bytes // dtype.itemsize // gpus) * gpus
        whole = torch.zeros(count, dtype=dtype, device=device.torch)
        share = torch.zeros(count // gpus, dtype=dtype, device=device.torch)
        return max(self.probe.times_s(lambda: self._call(operation, whole, share)))

    def hidden_share(self, num_bytes: int, size: int) -> float:
        """Share of its time that an all-gather hides behind square products that take as long."""
        probe, device = self.probe, self.probe.device
        part = max(1, num_bytes // 2 // self.shape.gpus)
        share = torch.zeros(part, dtype=device.half, device=device.torch)
        whole = torch.zeros(part * self.shape.gpus, dtype=device.half, device=device.torch)
        factor = torch.randn(size, size, dtype=device.half, device=device.torch)

        def products(count: int) -> None:
            for _ in range(count):
                linear(factor, factor)

        def both() -> None:
            group = self.group
            begun = group.all_gather(whole, share, "tensor", async_op=True) if group else None
            products(count)
            if begun is not None:
                begun.wait()

        gather_s = max(probe.times_s(lambda: self._call("all_gather", whole, share)))
        count = max(1, round(gather_s / max(probe.times_s(lambda: products(1)))))
        product_s, both_s = (max(probe.times_s(call)) for call in (lambda: products(count), both))
        return (product_s + gather_s - both_s) / min(product_s, gather_s)

    def _call(self, operation: str, whole: Tensor, share: Tensor) -> None:
        group = self.group
        if group is None:  # of a block that is not full: this rank only waits
            return
        if operation == "all_reduce":
            group.all_reduce(whole, "tensor")
        elif operation == "all_gather":
            group.all_gather(whole, share, "tensor")
        elif operation == "reduce_scatter":
            group.reduce_scatter(share, whole, "tensor")
        elif operation == "all_to_all":
            group.all_to_all(torch.empty_like(whole), whole, "tensor")
        elif group.rank == 0:
            dist.send(whole, group=group.handle, group_dst=1)
        else:
            dist.recv(whole, group=group.handle, group_src=0)


def ends_side_by_side(device: Device, timeout_s: float) -> bool:
    """Whether concurrent collectives of three communicators end within ``timeout_s``.

    Tensor, data and pipeline parallelism each have a communicator. All ranks start the same
    collectives in the same order, so only the library or the device's queues can block them. A rank
    on which they hang cannot use its communicators again.
    """
    groups = [dist.new_group() for _ in range(3)]
    numbers = [torch.zeros(1 << 20, device=device.torch) for _ in groups]
    deadline_s = time.monotonic() + timeout_s
    works = [
        dist.all_reduce(own, group=group, async_op=True)
        for _ in range(20)
        for group, own in zip(groups, numbers, strict=True)
    ]
    while not all(work.is_completed() for work in works):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    for group in groups:
        dist.destroy_process_group(group)
    return True


def network_adapters(sysfs: Path = Path("/sys")) -> dict[str, float]:
    """Nominal GB/s per direction of the adapters that a job's traffic takes, by name.

    Those in ``class/infiniband``, else Slingshot's (hsn0 ...), else all others; only the fastest of
    them, since slower ones serve storage or administration.
    """
    interfaces = {
        path.name: rate
        for path in sorted((sysfs / "class/net").glob("*"))
        if (path / "device").exists() and (rate := _interface_gb_per_s(path))
    }
    slingshot = {name: rate for name, rate in interfaces.items() if name.startswith("hsn")}
    found = _infiniband(sysfs) or slingshot or interfaces
    fastest = max(found.values(), default=0.0)
    return {name: rate for name, rate in found.items() if rate == fastest}


def _infiniband(sysfs: Path) -> dict[str, float]:
    """Rates of ports that are up; the file ``rate`` says, e.g., "400 Gb/sec (4X NDR)"."""
    rates = {}
    for port in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        with contextlib.suppress(OSError):
            rate = re.match(r"([\d.]+) Gb/sec", (port / "rate").read_text())
            if rate and "ACTIVE" in (port / "state").read_text():
                rates[f"{port.parents[1].name}:{port.name}"] = float(rate[1]) / 8
    return rates


def _interface_gb_per_s(interface: Path) -> float | None:
    """The kernel's Mbit/s as GB/s; None if the interface is down or its speed is unknown."""
    try:
        mbit_per_s = int((interface / "speed").read_text())
        up = (interface / "operstate").read_text().strip() == "up"
    except (OSError, ValueError):
        return None
    return mbit_per_s / 8000 if up and mbit_per_s > 0 else None
