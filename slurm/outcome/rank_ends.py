"""Ends of single ranks, where the launcher knows them one by one."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping

from slurm.trial import STDERR_NAME, Lease, TrialSpec

# After one rank has failed, srun -K1 ends the others at once. The trainer's ranks leave within 10 s
# of an out-of-memory by themselves, and write its result: a shorter time would cut them off.
FAILURE_GRACE_S = 12.0


class FailureGrace:
    """The time that a trial's other ranks have to end by themselves once one has failed."""

    def __init__(self, grace_s: float = FAILURE_GRACE_S) -> None:
        self._grace_s = grace_s
        self._failed_s = math.inf  # when the first failure was seen

    def is_over(self, failed: bool) -> bool:
        """Whether the ranks that still run have to be killed now; true at most once."""
        now = time.monotonic()
        if failed:
            self._failed_s = min(self._failed_s, now)
        if now - self._failed_s < self._grace_s:
            return False
        self._grace_s = math.inf
        return True


def first_failed(codes: Mapping[int, int]) -> tuple[int, int] | None:
    """Rank and exit code of the first rank that failed; later ones may be its consequences.

    Ranks are in the order of their ends; a negative code is the signal.
    """
    return next((end for end in codes.items() if end[1] != 0), None)


def note_failures(spec: TrialSpec, lease: Lease, codes: Mapping[int, int]) -> str:
    """Lines that name the failed ranks, also appended to the log if it can be written."""
    lines = [
        f"meshtune: rank {rank} on {lease.nodes[rank // spec.ranks_per_node]} "
        + (f"ended with exit code {code}\n" if code > 0 else f"was ended by signal {-code}\n")
        for rank, code in codes.items()
        if code != 0
    ]
    said, log = "".join(lines), spec.directory / STDERR_NAME
    # The disk may be full, or the trainer may have removed or replaced the log.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), os.fdopen(os.open(log, flags), "wb", buffering=0) as file:
        file.write(said.encode())
    return said
