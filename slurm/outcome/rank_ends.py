"""How single ranks ended, in the launcher's own words, where it knows them one by one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from slurm.outcome.watch import STDERR_NAME
from slurm.trial import Lease, TrialSpec


def first_failure(codes: Mapping[int, int]) -> int | None:
    """The exit code of the first rank that failed: those after it were dragged along.

    Args:
        codes: of ranks, in the order of their ends; negative: the signal.
    """
    return next((code for code in codes.values() if code != 0), None)


def note_failures(spec: TrialSpec, lease: Lease, codes: Mapping[int, int]) -> str:
    """Which ranks failed, in lines that are also appended to the log, if it can be written.

    Args:
        spec, lease: of the trial.
        codes: see :func:`first_failure`.
    """
    lines = [
        f"meshtune: rank {rank} on {lease.nodes[rank // spec.ranks_per_node]} "
        + (f"ended with exit code {code}\n" if code > 0 else f"was ended by signal {-code}\n")
        for rank, code in codes.items()
        if code != 0
    ]
    said, log = "".join(lines), spec.directory / STDERR_NAME
    # Not if the disk is full, or the trainer has removed the log or put something in its place.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), os.fdopen(os.open(log, flags), "wb", buffering=0) as file:
        file.write(said.encode())
    return said
