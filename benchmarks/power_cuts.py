"""Power cuts of a minicluster's nodes, for benchmarks and tests."""

from __future__ import annotations

import time

from slurm import processes
from slurm.minicluster import Minicluster, daemons


def kill_node(cluster: Minicluster, name: str) -> None:
    """Kill a node as a power cut would: its slurmd, its steps and all their processes.

    The controller notices after some 16 s; ``node_states`` then says ``down*``.
    """
    assert name in cluster.nodes
    left = processes.end_all(lambda: daemons.node_processes(cluster.config, name))
    assert not left, f"node {name}: processes {sorted(left)} do not die"


def revive_node(cluster: Minicluster, name: str, deadline_s: float = 120.0) -> None:
    """Start a killed node again; returns when the controller has it back."""
    assert name in cluster.nodes
    daemons.start_slurmd(cluster.config, name)
    end, bad = time.monotonic() + deadline_s, ("down", "unknown", "*", "drain", "fail")
    while any(word in cluster.node_states()[name] for word in bad):
        assert time.monotonic() < end, f"node {name} does not come back"
        time.sleep(0.1)
