"""The size and the troubles of a simulated cluster, and when its nodes fail."""

from __future__ import annotations

import bisect
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurm.launcher import Launcher

EPOCH = 946_684_800.0  # 2000-01-01, UTC: nobody takes it for a real run's time


@dataclass(frozen=True)
class SimulatedCluster:
    nodes: int  # how many there are
    seed: int = 0  # of all random numbers
    start_up_s: float = 60.0  # from the launch of a trial to its first step, in the median
    # standard deviation of the logarithm of a trial's speed, and of each of its steps'
    noise: float = 0.02
    node_noise: float = 0.01  # of a node's speed; a trial is as slow as its slowest node
    crash: float = 0.005  # share of the attempts that crash, at any moment
    hang: float = 0.005  # share that stop making progress, at any moment
    launch_failure: float = 0.005  # share that srun cannot launch
    node_failures_per_day: float = 0.0005  # of one node; it takes its trial along
    repair_s: float = 14_400.0  # until a node that failed is up again, for the next session
    time_s: float | None = None  # until the allocation ends; None: never
    max_concurrent: int = Launcher.max_concurrent  # trials that may run at once


class NodeFailures:
    """Nodes fail independently, at a constant rate (a Poisson process), from ``EPOCH`` on.

    One stream for the whole cluster, made as far as it is asked for: the same for every session,
    and its cost does not grow with the nodes.
    """

    def __init__(self, cluster: SimulatedCluster, names: Sequence[str]) -> None:
        self._names = names
        self._per_s = len(names) * cluster.node_failures_per_day / 86_400
        self._chance = random.Random(f"{cluster.seed}/failures")
        self._events: list[tuple[float, str]] = []
        self._until = EPOCH  # known up to here
        self._lock = threading.Lock()

    def between(self, after: float, until: float) -> Iterator[tuple[float, str]]:
        """(time, node) of every failure later than ``after``, up to ``until``, in order."""
        if not self._per_s:
            return iter(())
        with self._lock:
            while self._until <= until:
                self._until += self._chance.expovariate(self._per_s)
                self._events.append((self._until, self._chance.choice(self._names)))
            first = bisect.bisect(self._events, (after, chr(0x10FFFF)))
            last = bisect.bisect(self._events, (until, chr(0x10FFFF)))
            return iter(self._events[first:last])
