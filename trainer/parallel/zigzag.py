"""The part of each sequence that a rank of context parallelism holds. Torch-free."""

from __future__ import annotations


def held_chunks(seq_length: int, rank: int, cp: int) -> tuple[range, ...]:
    """Positions that a rank holds, in its order; none with one rank, which holds all.

    The sequence is cut into 2 cp chunks, of which rank r has r and 2 cp - 1 - r: under a causal
    mask every rank then has the same number of pairs of queries and keys.
    """
    if cp == 1:
        return ()
    size = seq_length // (2 * cp)
    return tuple(range(n * size, (n + 1) * size) for n in (rank, 2 * cp - 1 - rank))
