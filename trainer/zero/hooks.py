"""FSDP2's hooks for gathering weights and reducing gradients, one of each per unit.

FSDP2 keeps a unit's weights as one row per rank. It calls the first hook with the row before a pass
(``set_custom_all_gather``), the second with all rows of gradients after each backward pass
(``set_custom_reduce_scatter``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.model.precision import COMPUTE_DTYPE
from trainer.model.recompute import in_backward
from trainer.parallel.collectives import Group
from trainer.parallel.quantized import quantized_all_gather, quantized_reduce_scatter
from trainer.plan.config import TrainConfig
from trainer.plan.shards import UnitLayout, sum_format
from trainer.zero.background import CommunicationStream, InlineStream, Pending
from trainer.zero.secondary import SecondaryCopy


@dataclass
class HookContext:
    """State shared by the hooks of all FSDP units of a rank."""

    config: TrainConfig
    device: torch.device
    dtype: torch.dtype
    # None and ``Pending`` on a host whose collectives are single calls: gloo's threads run them
    gathering: CommunicationStream | None
    reduction: CommunicationStream | Pending
    # where secondary copies are written and read, inside the work of ``gathering``
    copying: InlineStream
    _scratch: dict[torch.dtype, Tensor] = field(default_factory=dict)

    def scratch(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Memory for FSDP2's own gradients, which nobody reads."""
        held = self._scratch.get(dtype)
        if held is None or held.numel() < numel:
            held = self._scratch[dtype] = torch.empty(numel, dtype=dtype, device=self.device)
        return held[:numel]


class UnitGroups(NamedTuple):
    """Groups of the ranks that hold a unit; every rank must make them in the same order."""

    gather: Group
    secondary: Group | None
    hops: list[Group]  # for reduce-scatters by hops, nearest ranks first; one if not quantized
    sync: Group | None  # ranks with the same piece that update different slices of it
    copies: Group | None  # ranks that update the same slice
    across: Group | None
    within: Group | None


class GatherWeights:
    """Gathers the rows of weights, quantized if the placement says so, or their secondary copy."""

    allocate = staticmethod(torch.empty)  # for FSDP2

    def __init__(
        self, unit: UnitLayout, group: Group, secondary: SecondaryCopy | None, context: HookContext
    ) -> None:
        self.wire = unit.placement.gather_format
        self.group = group
        self.secondary = secondary
        self.context = context
        self.fresh = False

    def weights_changed(self) -> None:
        """Mark the secondary copy as stale: the next gather reads the primary rows."""
        self.fresh = False

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        copy, context = self.secondary, self.context
        # Renew in each forward pass, or once weights changed; a repeated pass reads the copy.
        renew = context.config.refresh_secondary == "micro_batch" and not in_backward()
        if copy is not None and self.fresh and not renew:
            assert context.gathering is not None
            return context.gathering.run(lambda: copy.gather(output_tensor))
        self.fresh = True
        if context.gathering is None:
            return self.group.all_gather(output_tensor, input_tensor, "weights", async_op=True)
        return context.gathering.run(lambda: self._gather(output_tensor, input_tensor))

    def _gather(self, whole: Tensor, row: Tensor) -> None:
        if self.wire.quantized:
            quantized_all_gather(whole, row, self.group, self.wire)
        else:
            self.group.all_gather(whole, row, "weights")
        if self.secondary is not None:
            self.secondary.refresh(whole)


class ReduceGradients:
    """Accumulates each micro-batch's gradients into this rank's float32 piece, or, if configured,
    into a whole sum that is reduced once a step.

    After the last micro-batch the pieces of all groups are summed, which leaves ``final``: the mean
    over replicas of the gradients that this rank updates with.

    ``summed``: ranks whose tokens each gradient already sums, beside those that hold the unit.
    """

    def __init__(
        self, unit: UnitLayout, groups: UnitGroups, context: HookContext, summed: int
    ) -> None:
        self.unit = unit
        self.wire = unit.placement.reduce_format
        self.hops, self.sync, self.copies = groups.hops, groups.sync, groups.copies
        self.context = context
        self.divisor = unit.placement.dp * summed
        self.seen = 0
        self.piece = torch.zeros(unit.piece, device=context.device)
        self.final = self.piece
        if self.sync is not None:
            self.final = torch.zeros(unit.slice, device=context.device)
        numel = unit.ranks * unit.used if context.config.sums_whole_gradients else 0
        self.whole = torch.empty(numel, device=context.device)

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        # FSDP2 asks for the rows of gradients, then for a reduce-scatter's output, which it would
        # make .grad; the sums stay here instead.
        (numel,) = size
        if numel == self.unit.used:
            return self.context.scratch(numel, dtype)
        return torch.empty(numel, dtype=dtype, device=device)

    def start_step(self) -> None:
        self.seen = 0

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        first = self.seen == 0
        self.seen += 1
        last = self.seen == self.context.config.gas
        reduction = self.context.reduction
        if isinstance(reduction, Pending):
            reduction.add(self._begin(input_tensor, first, last, async_op=True))
        else:
            reduction.run(lambda: self._begin(input_tensor, first, last)())

    def _begin(
        self, gradients: Tensor, first: bool, last: bool, async_op: bool = False
    ) -> Callable[[], None]:
        """Start to sum all ranks' gradients into this rank's piece; returns what completes it."""
        if self.context.config.sums_whole_gradients:  # reduced after the last micro-batch only
            self.whole.copy_(gradients) if first else self.whole.add_(gradients)
            if not last:
                return lambda: None
            gradients, first = self.whole, True
        rows = self._by_rank(gradients)
        if self.wire.quantized:
            quantized_reduce_scatter(
                self.piece, rows, self.hops, self.wire, "gradients", accumulate=not first
            )
            return self._finish if last else lambda: None
        (group,) = self.hops
        whole = rows.to(COMPUTE_DTYPE[self.wire]).view(-1)
        add = not first
        work = group.reduce_scatter(self.piece, whole, "gradients", async_op=async_op, add=add)

        def end() -> None:
            work.wait()
            if last:
                self._finish()

        return end

    def _by_rank(self, gradients: Tensor) -> Tensor:
        """One row per accumulating rank, in the order of ranks: (degree, piece)."""
        unit = self.unit
        rows = gradients.view(unit.ranks, unit.used)
        if unit.row > unit.used:
            rows = torch.nn.functional.pad(rows, (0, unit.row - unit.used))
        pieces = rows.view(unit.ranks, unit.pieces, unit.piece).transpose(0, 1)
        return pieces.reshape(-1, unit.piece)

    def _finish(self) -> None:
        unit = self.unit
        if self.sync is not None:
            rows = self.piece.view(unit.slices, unit.slice)
            if self.wire.quantized:
                quantized_reduce_scatter(self.final, rows, [self.sync], self.wire, "gradient_sync")
            else:
                whole = rows.to(COMPUTE_DTYPE[self.wire]).view(-1)
                self.sync.reduce_scatter(self.final, whole, "gradient_sync")
        if self.copies is not None:
            wire = COMPUTE_DTYPE[sum_format(unit.placement)]
            self.copies.all_reduce(self.final, "gradient_sync", wire=wire)
        self.final.div_(self.divisor)
