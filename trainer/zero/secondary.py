"""Secondary copy of a unit's weights (hpZ, Wang et al. 2023), without its race.

After an all-gather from distant ranks each rank keeps a shard, so that near ranks together hold the
whole; until the weights change, gathers read these shards. A gather that starts before the copy has
ended would read unwritten memory (Dai et al. 2024): it waits on an event, and no host waits. With
one stream, as when FSDP2 gathers in its own, the event costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.parallel.collectives import Group
from trainer.parallel.quantized import gather_rows
from trainer.plan.shards import UnitLayout, secondary_wire
from trainer.quantization.blocks import dequantize, quantize
from trainer.zero.background import InlineStream


class SecondaryCopy:
    """This rank's shard of a unit's secondary copy; without a ``group`` it is whole."""

    def __init__(
        self,
        unit: UnitLayout,
        group: Group | None,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        writing: InlineStream,
        reading: InlineStream,
    ) -> None:
        self.rows, self.length = unit.secondary
        self.total = unit.ranks * unit.used
        self.degree = unit.placement.secondary_shard
        self.group = group
        self.rank = rank
        self.stored = unit.placement.secondary_format
        self.wire = secondary_wire(unit.placement)
        if self.stored.quantized:
            shape = (self.rows, self.stored.num_bytes(self.length))
            self.share = torch.empty(shape, dtype=torch.uint8, device=device)
        else:
            self.share = torch.empty(self.rows, self.length, dtype=dtype, device=device)
        self.writing = writing
        self.reading = reading
        self.written: Any = None
        self.gathers = 0  # so far

    def refresh(self, whole: Tensor) -> None:
        """Start copying this rank's share from the whole weights, flat and padded."""
        self.writing.run(lambda: self._write(whole))
        self.written = self.writing.record_event()

    def gather(self, whole: Tensor) -> None:
        """Start gathering the whole weights, flat and padded, from the shares."""
        self.gathers += 1
        self.reading.wait_event(self.written)
        self.reading.run(lambda: self._read(whole))

    def _write(self, whole: Tensor) -> None:
        size = self.rows * self.length
        part = whole[self.rank * size : (self.rank + 1) * size]
        if part.numel() < size:  # the last of uneven shares
            part = torch.nn.functional.pad(part, (0, size - part.numel()))
        part = part.view(self.rows, self.length)
        if self.stored.quantized:
            quantize(part, self.stored, out=self.share)
        else:
            self.share.copy_(part)

    def _read(self, whole: Tensor) -> None:
        shape = (self.degree * self.rows, self.length)
        even = shape[0] * shape[1] == self.total
        out = whole.view(shape) if even else whole.new_empty(shape)
        if self.stored.quantized or not self.wire.quantized:
            packed = self.share
        else:
            packed = quantize(self.share, self.wire)
        every = gather_rows(
            packed, self.group, "secondary", out if packed.dtype == out.dtype else None
        )
        if every.dtype != out.dtype:
            dequantize(every, self.wire, out)
        if not even:
            whole.copy_(out.view(-1)[: self.total])
