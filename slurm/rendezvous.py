"""Variables of every rank, named as torchrun does, the same for every launcher."""

from __future__ import annotations

import zlib

from slurm.trial import TRIAL_DIR_VARIABLE, TRIAL_VARIABLE, TrialSpec

# Below the kernel's ephemeral ports (from 32768 on), above those of most services.
_FIRST_PORT, _NUM_PORTS = 20000, 10000


def rendezvous_environment(
    spec: TrialSpec, master_addr: str, port: int | None = None
) -> dict[str, str]:
    """Variables that are the same in every rank of a trial.

    The lease's first node gets rank 0, at ``master_addr`` and a port, by default
    :func:`master_port`.
    """
    return {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port(spec) if port is None else port),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.ranks_per_node),
        "GROUP_WORLD_SIZE": str(spec.num_nodes),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "TORCHELASTIC_RUN_ID": spec.name,  # Lightning and others recognize torch's launcher by it
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store, not an agent
        TRIAL_VARIABLE: spec.name,  # by which a later driver finds what was left behind
        TRIAL_DIR_VARIABLE: str(spec.directory),
    }


def rank_environment(rank: int, local_rank: int, node: int) -> dict[str, str]:
    """Variables of one rank; agents set the same."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "NODE_RANK": str(node),
        "GROUP_RANK": str(node),
        "ROLE_RANK": str(rank),
    }


def master_port(spec: TrialSpec) -> int:
    """A port by the attempt's name, so that a retry gets another one.

    If it is taken on the first node, rank 0 cannot bind it: a launch failure, and a retry.
    """
    return _FIRST_PORT + zlib.crc32(spec.name.encode()) % _NUM_PORTS
