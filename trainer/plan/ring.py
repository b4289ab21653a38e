"""What each rank sends in a ring collective (Patarasuk and Yuan 2009; Thakur et al. 2005).

Counters, the trainer's prediction of them and the cost model share these. Torch-free.
"""

from __future__ import annotations

from typing import Any


def share_sent(ranks: Any) -> Any:
    """Share of a tensor that a rank sends in one way around the ring: (d - 1) / d.

    That of an all-gather, and of a reduce-scatter; an all-reduce is both.

    Args:
        ranks: d, a number or a column.
    """
    return (ranks - 1) / ranks


def all_reduce_bytes(num_bytes: int, ranks: int) -> int:
    """Bytes that each of so many ranks sends in an all-reduce: twice around, in whole bytes."""
    return 2 * (ranks - 1) * num_bytes // ranks
