"""What every rank is told, in torchrun's names; the same whatever starts them on nodes."""

from __future__ import annotations

import zlib

from slurm.trial import TRIAL_DIR_VARIABLE, TRIAL_VARIABLE, TrialSpec

# Below the kernel's ephemeral ports (from 32768 on), above those of most services.
_FIRST_PORT, _NUM_PORTS = 20000, 10000


def rendezvous_environment(
    spec: TrialSpec, master_addr: str, port: int | None = None
) -> dict[str, str]:
    """What every rank of a trial is told alike, as by torchrun.

    Args:
        spec: what to run.
        master_addr: address of the lease's first node, which gets rank 0.
        port: at which rank 0 listens; default :func:`master_port`.
    """
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port(spec) if port is None else port),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.ranks_per_node),
        "GROUP_WORLD_SIZE": str(spec.num_nodes),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "TORCHELASTIC_RUN_ID": spec.name,  # by it Lightning and others know a launcher of torch's
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store, not an agent
        TRIAL_VARIABLE: spec.name,  # by which a later driver finds what was left behind
        TRIAL_DIR_VARIABLE: str(spec.directory),
    }


def rank_environment(rank: int, local_rank: int, node: int) -> dict[str, str]:
    """What one rank is told, as by torchrun; each ``rank.sh`` says the same.

    Args:
        rank: its number.
        local_rank: its number on its node.
        node: the node's number in the lease.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "ROLE_RANK": str(rank),
    }


def master_port(spec: TrialSpec) -> int:
    """A port that follows from the attempt's name, so that a retry gets another one.

    Whether it is free on the first node only rank 0 can tell, by binding it. If it is not, that
    is a launch failure and the trial runs again.
    """
    return _FIRST_PORT + zlib.crc32(spec.name.encode()) % _NUM_PORTS
