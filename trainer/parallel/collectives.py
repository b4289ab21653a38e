"""Process groups as the trainer uses them: every collective is counted, by purpose and link."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

from trainer.plan.limits import ConfigError
from trainer.plan.placement import Level

for _name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):  # on a CPU not fused
    torch.library.impl(f"symm_mem::{_name}", "cpu", getattr(symmetric, f"_{_name}_fallback"))

_MULTICAST_ROWS = 2048  # up to this many rows torch gathers whole, by multicast, to the workspace
_APART = (
    "async_tp: tp ranks cannot map each other's memory ({}); show each rank all GPUs of its node "
    "(site profile: gpus: per_node), or set async_tp: false"
)

Purpose = Literal[
    "weights",  # whole weights of a layer, from the primary shards
    "secondary",  # the same from the secondary copy
    "gradients",  # of a micro-batch, or of the step where they are reduced once
    "gradient_sync",  # once a step, between groups that each have accumulated their own
    "publish",  # updated weights, from the ranks that updated them
    "tensor",  # tensor and sequence parallelism
    "context",  # keys, values and their gradients, of context parallelism
    "experts",  # tokens to their experts and back, and gradients likewise
    "routing",  # how many tokens each expert gets
    "pipeline",
    "embedding",  # gradients of a tied embedding, between first and last stage
    "totals",  # gradient norm and loss
]
Metric = Literal["bytes", "calls", "seconds"]
Report = dict[str, dict[str, dict[str, float]]]
Collective = Callable[..., dist.Work | None]
Op: TypeAlias = dist.ReduceOp.RedOpType
SUM, AVG = dist.ReduceOp.SUM, dist.ReduceOp.AVG


class Traffic:
    """Counter of calls, bytes and, if timed, seconds that this rank sent.

    Bytes are a ring's, per rank of d: d - 1 shards in an all-gather, (d-1)/d of the tensor in a
    reduce-scatter or all-to-all, twice that in an all-reduce. With a ``clock`` (seconds once the
    device is idle) every collective is waited for and timed.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock
        self.totals: defaultdict[tuple[Metric, Purpose, Level], float] = defaultdict(int)
        self.counting = True

    def add(self, purpose: Purpose, level: Level, num_bytes: int) -> None:
        if self.counting:
            self.totals["calls", purpose, level] += 1
            self.totals["bytes", purpose, level] += num_bytes

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Pause the counters, for traffic that is not part of a step."""
        self.counting = False
        try:
            yield
        finally:
            self.counting = True

    def report(self, steps: int) -> Report:
        """Per step: ``{"bytes": {purpose: {level: ...}}, "calls": ..., "seconds": ...}``."""
        timed = () if self.clock is None else ("seconds",)
        report: Report = {name: {} for name in ("bytes", "calls", *timed)}
        for (name, purpose, level), total in sorted(self.totals.items()):
            whole = name != "seconds" and total % steps == 0
            share = total // steps if whole else total / steps
            report[name].setdefault(purpose, {})[level.value] = share
        return report


class Group:
    """A process group with counters: global ``ranks`` in its order, ``level`` its widest link."""

    def __init__(
        self, handle: dist.ProcessGroup, ranks: Sequence[int], level: Level, traffic: Traffic
    ) -> None:
        self.handle = handle
        self.ranks = tuple(ranks)
        self.level = level
        self.traffic = traffic
        self.size = len(self.ranks)
        self.rank = handle.rank()
        self.on_gloo = dist.get_backend(handle) == "gloo"
        self.fused = False  # whether products run in one operator with their exchanges

    def all_gather(
        self, whole: Tensor, share: Tensor, purpose: Purpose, async_op: bool = False
    ) -> dist.Work:
        """All-gather every rank's ``share`` into ``whole``, along the first dimension."""
        gather = partial(dist.all_gather_single, whole, share, self.handle)
        return self._do(purpose, (self.size - 1) * share.nbytes, async_op, gather)

    def reduce_scatter(
        self,
        share: Tensor,
        whole: Tensor,
        purpose: Purpose,
        op: Op = SUM,
        async_op: bool = False,
        add: bool = False,
    ) -> dist.Work:
        """Reduce ``whole`` over the ranks, in its format; each gets its ``share`` of the first
        dimension, in any format. ``add``: to what the share holds."""
        direct = share.dtype == whole.dtype and not add
        out = share if direct else torch.empty_like(share, dtype=whole.dtype)
        scatter = partial(self._reduce_scatter, out, whole, op)
        work = self._do(purpose, (self.size - 1) * out.nbytes, async_op, scatter)
        store = share.add_ if add else share.copy_
        return work if direct else _then(work, lambda: store(out), async_op)

    def _reduce_scatter(
        self, share: Tensor, whole: Tensor, op: Op, async_op: bool
    ) -> dist.Work | None:
        average, far = op == AVG, self.level is Level.INTER_NODE
        if not self.on_gloo or (average and far):
            return dist.reduce_scatter_single(share, whole, op, self.handle, async_op)
        if far and not async_op:
            _scatter_in_ring(share, whole, self.handle)
            return None
        work = _scatter_directly(share, whole, self.handle, average)
        if not async_op:
            work.wait()
        return work

    def all_reduce(
        self,
        tensor: Tensor,
        purpose: Purpose,
        op: Op = SUM,
        async_op: bool = False,
        wire: torch.dtype | None = None,
    ) -> dist.Work:
        """Reduce in place; every rank gets the whole. ``wire``: another format on the way."""
        out = tensor.to(wire or tensor.dtype)
        sent = 2 * (self.size - 1) * out.nbytes // self.size  # a ring's
        reduce = partial(dist.all_reduce, out, op, self.handle)
        work = self._do(purpose, sent, async_op, reduce)
        return work if out is tensor else _then(work, lambda: tensor.copy_(out), async_op)

    def all_to_all(self, received: Tensor, sent: Tensor, purpose: Purpose) -> None:
        """All-to-all: row r of ``sent`` goes to rank r; its row for this rank arrives as row r."""
        num_bytes = sent.nbytes // self.size * (self.size - 1)
        exchange = partial(dist.all_to_all_single, received, sent, group=self.handle)
        self._do(purpose, num_bytes, False, exchange)

    def exchange(self, sent: Tensor, send: list[int], receive: list[int]) -> Tensor:
        """All-to-all of uneven parts: sends ``send[r]`` rows to rank r, returns those received."""
        received = sent.new_empty(sum(receive), *sent.shape[1:])
        num_bytes = (sum(send) - send[self.rank]) * sent.element_size() * sent.shape[1:].numel()
        exchange = partial(dist.all_to_all_single, received, sent, receive, send, self.handle)
        self._do("experts", num_bytes, False, exchange)
        return received

    def fuse(self, rows: int, row_bytes: int) -> None:
        """Fuse products with exchanges of up to ``rows`` rows per rank; every rank must call it.

        Raises ConfigError if a rank cannot map the memory of the others.
        """
        # The workspace would else be made in the first pass. One part is computed while another is
        # read; few rows are gathered at once.
        num_rows = max(2 * rows, min(self.size * rows, _MULTICAST_ROWS))
        try:
            if not self.on_gloo:
                symmetric.get_symm_mem_workspace(self.handle.group_name, num_rows * row_bytes)
        except dist.DistError:  # a peer is lost: nothing is wrong with the configuration
            raise
        except RuntimeError as error:
            raise ConfigError(_APART.format(error)) from error
        self.fused = True

    def gather_product(self, share: Tensor, matrix: Tensor, keeps: bool) -> tuple[Any, Tensor]:
        """All-gather the shares while multiplying those that have arrived with (inputs, outputs).

        Returns the gathered shares, if it ``keeps`` them, and the product. Never timed.
        """
        self.traffic.add("tensor", self.level, (self.size - 1) * share.nbytes)
        inputs = share.contiguous(), [matrix], 0, self.handle.group_name
        whole, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(*inputs, return_A=keeps)
        return whole, product

    def product_scatter(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Multiply and reduce-scatter in one operator: this rank's share of the summed products."""
        inputs = x, matrix, "sum", 0, self.handle.group_name
        share: Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(*inputs)
        self.traffic.add("tensor", self.level, (self.size - 1) * share.nbytes)
        return share

    def rotate(self, received: Tensor, sent: Tensor) -> Callable[[], None]:
        """Start sending to the next rank and receiving from the previous; returns the wait."""
        before, after = (self.ranks[(self.rank + step) % self.size] for step in (-1, 1))
        ops = [
            dist.P2POp(dist.isend, sent, after, self.handle),
            dist.P2POp(dist.irecv, received, before, self.handle),
        ]
        works: list[dist.Work] = []

        def begin(async_op: bool) -> None:
            works.extend(dist.batch_isend_irecv(ops))
            if not async_op:
                finish()

        def finish() -> None:
            for work in works:
                work.wait()
            works.clear()
            ops.clear()  # until here they hold the memory

        self._do("context", sent.nbytes, True, begin)
        return finish

    def _do(
        self, purpose: Purpose, num_bytes: int, async_op: bool, collective: Collective
    ) -> dist.Work:
        self.traffic.add(purpose, self.level, num_bytes)
        clock = self.traffic.clock
        if clock is None or not self.traffic.counting:
            return collective(async_op=async_op) or _DONE
        begin = clock()
        collective(async_op=False)
        self.traffic.totals["seconds", purpose, self.level] += clock() - begin
        return _DONE


class Handle(dist.Work):
    """Handle of work that has begun; ``end`` waits for it."""

    def __init__(self, end: Callable[[], object]) -> None:
        super().__init__()
        self.end = end

    def wait(self, timeout: Any = None) -> bool:
        self.end()
        return True


_DONE = Handle(lambda: None)


def _then(work: dist.Work, finish: Callable[[], object], async_op: bool) -> dist.Work:
    """Handle that also ``finish``es the work; without ``async_op`` both end here."""

    def end() -> None:
        work.wait()
        finish()

    if async_op:
        return Handle(end)
    end()
    return _DONE


def _scatter_directly(
    share: Tensor, whole: Tensor, group: dist.ProcessGroup, average: bool
) -> dist.Work:
    """Begin a reduce-scatter by one all-to-all; wait before reading ``share``, contiguous.

    gloo's own reduces everything on every rank, which sends twice the bytes. Inside a node one
    all-to-all has the fewest steps; across nodes a ring crosses each node's link once.
    """
    received = torch.empty_like(whole)
    work = dist.all_to_all_single(received, whole, group=group, async_op=True)
    reduce = torch.mean if average else torch.sum

    def end() -> None:
        work.wait()
        reduce(received.view(group.size(), -1), 0, out=share.view(-1))

    return Handle(end)


def _scatter_in_ring(share: Tensor, whole: Tensor, group: dist.ProcessGroup) -> None:
    """Reduce-scatter by a ring: size - 1 steps between neighbours, each adds its own part."""
    size, rank = group.size(), group.rank()
    rows = whole.view(size, -1)
    right, left = (rank + 1) % size, (rank - 1) % size
    partial = rows[left]
    for back in range(2, size + 1):
        received = torch.empty_like(partial)
        works = [
            dist.isend(partial, group=group, group_dst=right),
            dist.irecv(received, group=group, group_src=left),
        ]
        for work in works:
            if work is not None:
                work.wait()
        partial = received.add_(rows[(rank - back) % size])
    share.view(-1).copy_(partial)
