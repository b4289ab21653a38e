"""Symmetric memory on the pretended device: torch's own operators for CUDA, one rank of several.

Their products and copies are those that a GPU gets, and are counted. Their own order, of two
streams that write parts of one tensor, is taken on trust; what comes before and behind them is not.
No barrier waits, since no peer is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from benchmarks.pretended_gpu import device
from benchmarks.pretended_gpu.timeline import timeline


class Workspace:
    """Memory of every rank of a group, as one of them sees it."""

    def __init__(self, group: dist.ProcessGroup, num_bytes: int) -> None:
        self.rank, self.world_size = group.rank(), group.size()
        self.num_bytes = num_bytes
        self.memory = [
            torch.empty(num_bytes, dtype=torch.uint8, device="cuda") for _ in range(group.size())
        ]

    def barrier(self, channel: int = 0) -> None:
        """Wait for the others."""

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> Tensor:
        """A tensor in that rank's memory."""
        begin = storage_offset * dtype.itemsize
        num_bytes = torch.Size(sizes).numel() * dtype.itemsize
        return self.memory[rank][begin : begin + num_bytes].view(dtype).view(*sizes)


_workspaces: dict[str, Workspace] = {}


def _workspace(group_name: str, min_size: int) -> Workspace:
    """A larger one than the first is an error: ranks would exchange it within a pass."""
    group = dist.distributed_c10d._resolve_process_group(group_name)
    if group_name not in _workspaces:
        _workspaces[group_name] = Workspace(group, min_size)
    found = _workspaces[group_name]
    assert min_size <= found.num_bytes, f"{min_size} bytes of a workspace of {found.num_bytes}"
    return found


def _as_one(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
    """The operator in the order of the timeline: one kernel of the stream that calls it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        timeline.orders = False
        try:
            found = operator(*args, **kwargs)
        finally:
            timeline.orders = True
        reads: list[Tensor] = []
        writes: list[Tensor] = []
        device.collect(args, reads)
        device.collect(found, writes)
        timeline.launch(name, reads, writes, None)
        return found

    return run


def install() -> None:
    """Let torch's operators run as they do on a GPU, by steps that it launches from Python."""
    torch_has: Any = symmetric
    torch_has.get_symm_mem_workspace = _workspace
    torch_has._should_use_multimem_all_gather_matmul = lambda *_: False
    torch_has.torch.profiler.record_function = lambda name: contextlib.nullcontext()
    operators: Any = torch.ops.symm_mem
    for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
        setattr(operators, name, _as_one(name, getattr(symmetric, f"_{name}")))


def forget() -> None:
    """Workspaces are a job's."""
    _workspaces.clear()
    symmetric._backend_streams.clear()
