"""Collectives along the grid's third axis: weights gathered before a product, gradients scattered.

A layer's weights are cut once more along z (Singh et al. 2024, algorithm 1, lines 2 and 14). The
next layer's gather and earlier scatters can overlap computation (section V-D, OAG and ORS) without
changing results or order.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model.deferred import Receive
from trainer.model.precision import COMPUTE_DTYPE
from trainer.model.recompute import in_backward
from trainer.parallel.collectives import Group
from trainer.parallel.mesh import Mesh
from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.quantization.blocks import dequantize, quantize


class Depth:
    """One rank's group along z, for all of its stages."""

    receive: Receive  # takes gradients that do not pass through autograd

    def __init__(self, config: TrainConfig, mesh: Mesh) -> None:
        self.group = mesh.grid.z.group
        self.gathers_ahead = config.overlap_all_gather
        self.scatters_late = config.overlap_reduce_scatter
        self.wire = COMPUTE_DTYPE[config.reduce_precision]
        self.quantized = bool(config.quantize_weights)
        self.anchor = nn.Parameter(torch.empty(0))
        self.late: dict[Block, list[tuple[Any, Tensor]]] = {}
        self.uses: Counter[Block] = Counter()

    def scatter(self, gradient: Tensor, block: Block) -> Tensor | None:
        """Reduce-scatter a block's gradient along z; None if ``receive`` gets this rank's rows."""
        if self.group is None:
            return gradient
        weight, source = block.weight, block.source
        share = gradient.new_empty(weight.shape, dtype=self.wire)
        whole = gradient.to(self.wire)
        work = self.group.reduce_scatter(share, whole, "gradients", async_op=True)
        if not self.scatters_late:
            work.wait()
            return share.to(weight.dtype)
        late = self.late.setdefault(source, [])
        if len(late) == self.uses[source]:  # all from the previous micro-batch
            self._hand_over(source)
            late = self.late[source] = []
        late.append((work, share))
        return None

    def finish(self) -> None:
        """Hand over all gradients that are still on their way."""
        for source in list(self.late):
            self._hand_over(source)

    def _hand_over(self, source: Block) -> None:
        def arrived() -> Iterator[Tensor]:
            for work, share in self.late.pop(source):
                work.wait()
                yield share.to(source.weight.dtype)

        self.receive(source.weight, functools.reduce(torch.add, arrived()))


class Block:
    """A layer's weights, gathered along z.

    Recomputation repeats the blocks of a ``layer`` together; -1: they are never repeated.
    ``source``: the embedding's block, for a head without weights of its own.
    """

    def __init__(self, module: nn.Module, depth: Depth, layer: int, source: Block | None) -> None:
        self.module = module
        self.depth = depth
        self.layer = layer
        self.source = source or self
        self.depth.uses[self.source] += 1
        self.next: Block | None = None
        self.ahead: tuple[Tensor, Any, Tensor] | None = None

    @property
    def weight(self) -> nn.Parameter:
        return self.source.module.weight

    @property
    def leaf(self) -> nn.Parameter:
        """Tensor that autograd computes a gradient for; an empty anchor where scatters run late.

        Autograd calls a leaf's hooks even if its gradient is empty.
        """
        late = self.depth.group is not None and self.depth.scatters_late
        return self.depth.anchor if late else self.weight

    def gather(self) -> Tensor:
        """Gather the block and start on the next one; a repeated pass ends with its layer."""
        group = self.depth.group
        if group is None:
            return self.weight.detach()
        if self.ahead is None:
            self._begin(group)
        whole = self._finish(group)
        follows = self.next if self.depth.gathers_ahead else None
        if follows is not None and (not in_backward() or follows.layer == self.layer >= 0):
            follows._begin(group)
        return whole

    def _begin(self, group: Group) -> None:
        share = self.weight.detach()
        if self.depth.quantized:
            share = quantize(share.view(1, -1), Format.INT8)
        whole = share.new_empty(group.size * share.size(0), *share.shape[1:])
        work = group.all_gather(whole, share, "weights", async_op=True)
        self.ahead = whole, work, share  # the share must live until it is sent

    def _finish(self, group: Group) -> Tensor:
        assert self.ahead is not None
        whole, work, _ = self.ahead
        self.ahead = None
        work.wait()
        if not self.depth.quantized:
            return whole
        rows, *columns = self.weight.shape
        block = self.weight.new_empty(group.size * rows, *columns)
        dequantize(whole, Format.INT8, block.view(group.size, -1))
        return block
