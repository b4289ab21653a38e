"""Quantized collectives on real ranks, of every size and format; part of ``rank_worker``."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.parallel.collectives import Group, Traffic
from trainer.parallel.quantized import quantized_all_gather, quantized_reduce_scatter
from trainer.plan.axes.mesh import Axes
from trainer.plan.formats import BLOCK, Format
from trainer.plan.placement import Topology

SIZES = (1, 3, 255, 256, 257, 1000)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = {Format.INT8: 127, Format.INT4: 7}
"""Codes on each side of zero: a number is off by at most half of the greatest one's share."""


def cases() -> dict[str, Any]:
    """Greatest errors as parts of what the formats allow, by what was done; 1 is the bound.

    Also ``misplaced``, the greatest error where every rank's numbers are equal and so nearly
    exact; ``differ``, ranks that have decoded other bits; ``bytes``, sent and as they should be.
    """
    ranks = dist.get_world_size()
    traffic = Traffic()
    hops = {
        f"hops {near} x {ranks // near}": [
            group(near, 1, traffic),
            group(ranks // near, near, traffic),
        ]
        for near in (2, 4)
    }
    hops["one hop"] = [group(ranks, 1, traffic)]
    found: dict[str, Any] = {"misplaced": 0.0, "differ": 0, "bytes": []}
    for dtype, n, fmt in itertools.product(DTYPES, SIZES, STEPS):
        error, differ = gathered(hops["one hop"][0], dtype, n, fmt)
        keep_greatest(found, f"gather {dtype}", error)
        found["differ"] += differ
        for name, groups in hops.items():
            traffic.totals.clear()
            keep_greatest(found, f"{name} {dtype}", reduced(groups, dtype, n, fmt))
            expected = sum(
                (g.size - 1) * fmt.num_bytes(n * ranks // reached)
                for g, reached in zip(groups, reaches(groups), strict=True)
            )
            sent = sum(n for (metric, *_), n in traffic.totals.items() if metric == "bytes")
            found["bytes"].append([sent, expected])
    for groups, fmt in itertools.product(hops.values(), STEPS):
        keep_greatest(found, "misplaced", placed(groups, 2 * BLOCK, fmt))
    return found


def group(size: int, stride: int, traffic: Traffic) -> Group:
    every = Axes({"dp": dist.get_world_size()}).groups("dp", size, stride)
    handle, _ = dist.new_subgroups_by_enumeration(every)
    mine = next(ranks for ranks in every if dist.get_rank() in ranks)
    return Group(handle, mine, Topology(4).level(mine), traffic)


def reaches(groups: list[Group]) -> list[int]:
    """Ranks among whom the rows are spread after each hop."""
    return list(itertools.accumulate((g.size for g in groups), lambda a, b: a * b))


def numbers(rank: int, rows: int, n: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + n)
    return torch.randn(rows, n, generator=generator).to(dtype)


def gathered(ranks: Group, dtype: torch.dtype, n: int, fmt: Format) -> tuple[float, int]:
    every = torch.cat([numbers(rank, 1, n, dtype) for rank in range(ranks.size)])
    whole = torch.empty(ranks.size * n, dtype=dtype)
    quantized_all_gather(whole, every[ranks.rank].clone(), ranks, fmt)
    greatest = every.float().abs().amax()
    allowed = greatest * (0.5 / STEPS[fmt] + torch.finfo(dtype).eps)
    seen: list[Any] = [None] * ranks.size
    dist.all_gather_object(seen, whole.view(torch.uint8).tolist())
    error = (whole.view_as(every).float() - every.float()).abs().amax() / allowed
    return float(error), sum(one != seen[0] for one in seen)


def reduced(groups: list[Group], dtype: torch.dtype, n: int, fmt: Format) -> float:
    """Twice into the same place, so that the second time adds."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    every = torch.stack([numbers(source, ranks, n, dtype) for source in range(ranks)]).float()
    out = torch.full((n,), float("nan"))
    for again in (False, True):
        rows = numbers(rank, ranks, n, dtype)
        quantized_reduce_scatter(out, rows, groups, fmt, "gradients", accumulate=again)
    # Each hop rounds sums whose addends are numbers of all ranks between them.
    allowed = len(groups) * ranks * every.abs().amax() * 0.5 / STEPS[fmt] * 1.1
    return float((out - 2 * every[:, rank].sum(0)).abs().amax() / (2 * allowed))


def placed(groups: list[Group], n: int, fmt: Format) -> float:
    """Rows of equal numbers, which tell from whom and to whom: such blocks are nearly exact."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    rows = torch.arange(1.0, 1 + ranks)[:, None].expand(ranks, n) * 10.0 ** (rank % 3)
    out = torch.empty(n)
    quantized_reduce_scatter(out, rows.contiguous(), groups, fmt, "gradients")
    expected = (rank + 1) * sum(10.0 ** (source % 3) for source in range(ranks))
    return float((out / expected - 1).abs().amax())


def keep_greatest(found: dict[str, Any], name: str, value: float) -> None:
    found[name] = max(found.get(name, 0.0), value)
