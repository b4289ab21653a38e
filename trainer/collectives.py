"""Collectives on one flat tensor per rank, under one name for every version of torch.

torch 2.13 renames ``all_gather_into_tensor`` and ``reduce_scatter_tensor``, and warns at each use
of the old names.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_gather(
    whole: Tensor, share: Tensor, group: dist.ProcessGroup, async_op: bool = False
) -> dist.Work | None:
    """Join every rank's ``share`` in ``whole``, along the first dimension."""
    return _gather(whole, share, group=group, async_op=async_op)


def reduce_scatter(
    share: Tensor,
    whole: Tensor,
    group: dist.ProcessGroup,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    async_op: bool = False,
) -> dist.Work | None:
    """Reduce ``whole`` over the ranks; each gets its ``share`` of the first dimension."""
    return _scatter(share, whole, op=op, group=group, async_op=async_op)
