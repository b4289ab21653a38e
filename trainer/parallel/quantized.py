"""Quantized collectives: qwZ and qgZ of ZeRO++ (Wang et al. 2023).

Codes and scales are one buffer. All receivers, the sender included, decode the same numbers; sums
are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.parallel.collectives import Group, Purpose
from trainer.plan.formats import Format
from trainer.quantization.blocks import dequantize, dequantize_sum, quantize


def gather_rows(
    rows: Tensor, group: Group | None, purpose: Purpose, out: Tensor | None = None
) -> Tensor:
    """All-gather the ranks' rows along the first dimension; without a group, the rows given."""
    if group is None:
        return rows if out is None else out.copy_(rows)
    if out is None:
        out = rows.new_empty(group.size * rows.size(0), *rows.shape[1:])
    group.all_gather(out.view(-1), rows.view(-1), purpose)
    return out


def quantized_all_gather(whole: Tensor, share: Tensor, group: Group, fmt: Format) -> None:
    """All-gather every rank's ``share`` of weights, rounded to the format, into ``whole``.

    ``share`` is (n,), ``whole`` (ranks * n,) in any floating-point format.
    """
    packed = gather_rows(quantize(share[None], fmt), group, "weights")
    dequantize(packed, fmt, whole.view(group.size, -1))


def quantized_reduce_scatter(
    out: Tensor,
    rows: Tensor,
    hops: Sequence[Group],
    fmt: Format,
    purpose: Purpose,
    accumulate: bool = False,
) -> None:
    """Sum the ranks' rows; each rank gets the row of its number.

    One all-to-all per hop, nearest ranks first, so that far links carry sums. Each hop sends, to
    every rank, the rows of all ranks at its position: this slice reordering leaves results where
    they belong (Wang et al. 2023, section 4.3).

    Args:
        out: (n,) float32, added to if ``accumulate``.
        rows: (ranks, n), floating point; ranks is the product of the hops' sizes.
        hops: groups, nearest first; one at least.
    """
    n = rows.size(1)
    for number, group in enumerate(hops):
        rest = rows.size(0) // group.size
        if rest > 1:
            rows = rows.view(rest, group.size, n).transpose(0, 1)
        # In the last hop, where rest is 1, reshape returns a view.
        packed = quantize(rows.reshape(group.size, rest * n).contiguous(), fmt)
        received = torch.empty_like(packed)
        group.all_to_all(received, packed, purpose)
        if number < len(hops) - 1:
            rows = dequantize_sum(received, fmt, out.new_empty(rest * n)).view(rest, n)
    dequantize_sum(received, fmt, out, accumulate)
