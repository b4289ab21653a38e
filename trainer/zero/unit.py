"""An FSDP unit: parameters that are gathered together, and their placement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainer.model.parameters import Piece, Slot
from trainer.parallel.collectives import Group
from trainer.parallel.mesh import HolderGroups
from trainer.parallel.quantized import gather_rows
from trainer.plan.shards import UnitLayout
from trainer.quantization.blocks import dequantize, quantize
from trainer.zero.hooks import GatherWeights, HookContext, ReduceGradients, UnitGroups
from trainer.zero.secondary import SecondaryCopy


def unit_groups(layout: UnitLayout, holders: HolderGroups) -> UnitGroups:
    """The groups of a unit's collectives; see ``GatherWeights``, ``ReduceGradients``."""
    placement = layout.placement
    degree = placement.gradient_shard
    gather = holder_group(holders, layout.ranks, 1, "gather")
    copy = placement.secondary_shard
    secondary = holders.replicas(copy, 1, "gather") if copy else None
    hops, stride = [], 1
    for size in layout.hops if placement.reduce_format.quantized else (degree,):
        hops.append(holder_group(holders, size, stride, "reduce"))
        stride *= size
    sync = holders.replicas(layout.slices, degree, "reduce")
    copies = holders.replicas(layout.copies, placement.optimizer_shard, "reduce")
    across = holders.replicas(layout.slices, degree, "main")
    within = holders.replicas(layout.pieces, layout.ranks, "main")
    return UnitGroups(gather, secondary, hops, sync, copies, across, within)


class FsdpUnit:
    """The parameters that FSDP2 gathers together, in its order: a layer's, or all others."""

    def __init__(
        self,
        module: FSDPModule,
        members: list[Slot],
        layout: UnitLayout,
        holders: HolderGroups,
        context: HookContext,
    ) -> None:
        self.module = module
        self.members = members
        self.layout = layout
        self.replica = holders.rank
        self.dtype = context.dtype
        groups = unit_groups(layout, holders)
        copy = None
        if degree := layout.placement.secondary_shard:
            where = (self.dtype, context.device, context.copying, context.copying)
            copy = SecondaryCopy(layout, groups.secondary, holders.rank % degree, *where)
        self.gather = GatherWeights(layout, groups.gather, copy, context)
        self.reduce = ReduceGradients(layout, groups, context, holders.apart)
        module.set_custom_all_gather(self.gather)
        module.set_custom_reduce_scatter(self.reduce)
        # The hook divides. FSDP2 would divide fp16 gradients by the root of the ranks, lest sums
        # overflow; here sums are float32.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        for slot in members:
            slot.parameter.register_post_accumulate_grad_hook(_drop_gradient)
        self.across, self.within = groups.across, groups.within
        self.locals = [cast(DTensor, slot.parameter.detach()).to_local() for slot in members]
        self.flat: Tensor | None = None
        self.pieces = list(self._split() if layout.pieces * layout.slices > 1 else self._whole())

    def _whole(self) -> Iterator[Piece]:
        """Masters if the stored weights double as masters: one per parameter."""
        rank, grads = self.replica % self.layout.ranks, self._parts(self.reduce.final)
        parts = zip(self.members, self.locals, grads, self.layout.chunks, strict=True)
        for slot, local, grad, chunk in parts:
            if local.numel():
                master = nn.Parameter(local)
                master.grad = grad
                yield Piece(slot, master, 0, local.numel(), rank * chunk)

    def _split(self) -> Iterator[Piece]:
        """Masters if they are split further than the stored weights: parts of the row."""
        layout = self.layout
        row = self.locals[0].new_zeros(layout.row)
        torch._foreach_copy_(self._parts(row), self.locals)
        replica = self.replica
        mine = row[layout.begin(replica) :][: layout.slice]
        self.flat = mine.to(torch.float32, copy=True)  # a view would hold the whole row
        for number, begin, offset, length in layout.updated(replica):
            master = nn.Parameter(self.flat[offset : offset + length])
            master.grad = self.reduce.final[offset : offset + length]
            first = replica % layout.ranks * layout.chunks[number] + begin
            yield Piece(self.members[number], master, 0, length, first)

    def publish(self) -> None:
        """Gather updated weights from the ranks that updated them into the stored weights."""
        self.gather.weights_changed()
        if self.flat is None:
            return
        layout, wire = self.layout, self.layout.placement.gather_format
        mine = self.flat.to(self.dtype)[None]
        rows = quantize(mine, wire) if wire.quantized else mine
        rows = gather_rows(rows, self.across, "publish")
        rows = gather_rows(rows, self.within, "publish")
        if wire.quantized:
            rows = dequantize(rows, wire, mine.new_empty(rows.size(0), layout.slice))
        torch._foreach_copy_(self.locals, self._parts(rows.view(-1)))

    def _parts(self, row: Tensor) -> list[Tensor]:
        """This rank's shards as parts of a row, without the padding between them."""
        chunks = row[: self.layout.used].split(self.layout.chunks)
        pairs = zip(chunks, self.locals, strict=True)
        return [chunk[: local.numel()].view_as(local) for chunk, local in pairs]


def holder_group(holders: HolderGroups, size: int, stride: int, stream: str) -> Group:
    """The group of ``HolderGroups.replicas``, which must have more than one rank."""
    group = holders.replicas(size, stride, stream)
    assert group is not None
    return group


def _drop_gradient(parameter: Tensor) -> None:
    """Drop the gradient that FSDP2 set: a view of scratch memory."""
    parameter.grad = None
