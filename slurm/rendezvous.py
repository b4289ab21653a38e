"""Where a trial's ranks meet, and how many there are; the same whatever starts them on nodes."""

from __future__ import annotations

import zlib

from slurm.trial import TRIAL_VARIABLE, TrialSpec

# Below the kernel's ephemeral ports (from 32768 on), above those of most services.
_FIRST_PORT, _NUM_PORTS = 20000, 10000


def rendezvous_environment(spec: TrialSpec, master_addr: str) -> dict[str, str]:
    """What every rank of a trial is told alike, in torch's names.

    Args:
        spec: what to run.
        master_addr: address of the lease's first node, which gets rank 0.
    """
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port(spec)),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.ranks_per_node),
        TRIAL_VARIABLE: spec.name,  # by which a later driver finds what was left behind
    }


def master_port(spec: TrialSpec) -> int:
    """A port that follows from the attempt's name, so that a retry gets another one.

    Whether it is free on the first node only rank 0 can tell, by binding it. If it is not, that
    is a launch failure and the trial runs again.
    """
    return _FIRST_PORT + zlib.crc32(spec.name.encode()) % _NUM_PORTS
