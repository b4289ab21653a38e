"""A pretended process group of one rank among many: collectives are ordered, and move nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.pretended_gpu.timeline import Stream, timeline

FORMATS = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64,
    torch.int8, torch.uint8,
)  # fmt: skip
"""Formats that NCCL and RCCL send alike."""


class Work(dist.Work):
    """Handle of a collective: a stream that waits for it is ordered after it.

    It holds the tensors until then, as NCCL's does.
    """

    def __init__(self, known: dict[Stream, int], held: Sequence[Tensor]) -> None:
        super().__init__()
        self.known, self.held = known, held

    def wait(self, timeout: Any = None) -> bool:
        timeline.stream.wait(self.known)
        self.held = ()
        return True

    def is_completed(self) -> bool:
        return True


class Ranks(dist.ProcessGroup):
    """A group that runs its collectives on a stream of its own, in their order."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.numbers = rank, size
        self.stream = Stream(f"collectives of {size}")

    @property
    def group_name(self) -> str:
        return self.name

    def _set_group_name(self, name: str) -> None:
        self.name = name

    def getBackendName(self) -> str:  # noqa: N802
        return "pretended"

    def rank(self) -> int:
        return self.numbers[0]

    def size(self) -> int:
        return self.numbers[1]

    def _do(self, name: str, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> Work:
        for tensor in (*reads, *writes):
            assert tensor.is_cuda, f"{name} of a tensor on {tensor.device}"
            assert tensor.is_contiguous(), f"{name} of a tensor with strides {tensor.stride()}"
            assert tensor.dtype in FORMATS, f"{name} of {tensor.dtype}"
        self.stream.wait(timeline.stream.known)
        timeline.launch(name, reads, writes, self.stream)
        timeline.kernels[name] += 1
        timeline.sent[name] += sum(tensor.nbytes for tensor in reads)
        return Work(dict(self.stream.known), [*reads, *writes])

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        return self._do("all_reduce", tensors, tensors)

    def all_gather_single(self, whole: Tensor, share: Tensor, opts: Any = None) -> Work:
        assert whole.numel() == share.numel() * self.size() and whole.dtype == share.dtype
        return self._do("all_gather", [share], [whole])

    def reduce_scatter_single(self, share: Tensor, whole: Tensor, opts: Any = None) -> Work:
        assert whole.numel() == share.numel() * self.size() and whole.dtype == share.dtype
        return self._do("reduce_scatter", [whole], [share])

    def all_to_all_single(
        self, received: Tensor, sent: Tensor, received_sizes: Any, sent_sizes: Any, opts: Any = None
    ) -> Work:
        assert received.numel() == sent.numel() and received.dtype == sent.dtype
        return self._do("all_to_all", [sent], [received])

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Work:
        return self._do("send", tensors, [])

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Work:
        return self._do("recv", [], tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Work:
        return self._do("broadcast", tensors, tensors)

    _allgather_base, _reduce_scatter_base = all_gather_single, reduce_scatter_single
    alltoall_base = all_to_all_single


dist.Backend.register_backend(
    "pretended", lambda store, rank, size, timeout: Ranks(rank, size), devices=["cpu", "cuda"]
)


def start(rank: int, size: int) -> None:
    """Be that rank of a job."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.distributed_c10d._store_based_barrier = lambda *_, **__: None
    dist.init_process_group("pretended", rank=rank, world_size=size, store=dist.HashStore())
