"""A controller that is killed and comes back with what it had saved some seconds before."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from slurm import processes
from slurm.minicluster import daemons
from slurm.minicluster.cluster import Minicluster, MiniclusterError
from support.waiting import wait_for

SAVED = "job_state"


@contextlib.contextmanager
def forgetting(cluster: Minicluster, job: str) -> Iterator[None]:
    """What happens to a job's steps in here is not known to Slurm afterwards.

    It saves its state every five seconds at most, so this happens to whatever was done since.
    """
    state = Path(cluster.config.directory) / "state"
    mark, kept = secrets.token_hex(8).encode(), b""

    def saved() -> bool:
        nonlocal kept
        with contextlib.suppress(FileNotFoundError):  # it is being replaced, in two steps
            kept = (state / SAVED).read_bytes()
        return mark in kept

    cluster.run("scontrol", "update", f"jobid={job}", f"comment={mark.decode()}")
    wait_for(saved, f"job {job} is saved")
    yield
    config = cluster.config
    assert not processes.end_all(lambda: daemons.controller(config))
    for name in (SAVED, f"{SAVED}.old"):
        (state / name).write_bytes(kept)
    daemons.start_daemon(config, "slurmctld", "-f", str(config.conf))
    wait_for(lambda: _answers(cluster), "the controller is back")
    assert job in cluster.run("squeue", "-h", "-o", "%i").split()


def _answers(cluster: Minicluster) -> bool:
    with contextlib.suppress(MiniclusterError):
        return bool(cluster.node_states())
    return False
