"""A simulated cluster: trials end as a model and a seed decide, in virtual time.

Driver, pool, journal and classification are the real ones: this launcher makes up the evidence of a
trial (a result, lines of srun or torch), and :mod:`slurm.outcome.classify` classifies it. The
evidence depends only on the seed, the trial's name (number and attempt), its nodes and the virtual
time.
"""

from __future__ import annotations

import bisect
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from slurm.launcher import Launcher, LauncherError
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import Evidence
from slurm.outcome.step_log import EarlyStop, StepReport, StopRule
from slurm.outcome.watch import Termination
from slurm.simulated.clock import VirtualClock
from slurm.simulated.trial import SimulatedCluster, SimulatedStep, Workload, simulate
from slurm.srun.texts import SRUN_TEXTS
from slurm.trial import Lease, TrialSpec

if TYPE_CHECKING:
    from foundation.container import Container

EPOCH = 946_684_800.0  # 2000-01-01, UTC: clearly not the time of a real run
NODE_LOSS_S = 60.0  # until Slurm notices that a node does not answer


class SimulatedLauncher(Launcher):
    """Trials of a workload on a cluster, in virtual time.

    The session begins at ``start``, seconds since the epoch, ``EPOCH`` at the earliest.

    Raises LauncherError if there are no nodes.
    """

    name = "simulate"
    simulated = True

    def __init__(self, cluster: SimulatedCluster, workload: Workload, start: float = 0.0) -> None:
        if cluster.nodes < 1:
            raise LauncherError(f"a cluster of {cluster.nodes} nodes has no place for a trial")
        self.cluster = cluster
        self.workload = workload
        self.max_concurrent = cluster.max_concurrent
        self.clock = self._clock = VirtualClock(max(EPOCH, start))
        self._start = self._clock.time()
        digits = len(str(cluster.nodes))
        self._names = tuple(f"n{i:0{digits}d}" for i in range(1, cluster.nodes + 1))
        speeds = random.Random(f"{cluster.seed}/speeds")
        self._slowness = {
            node: speeds.lognormvariate(0.0, cluster.node_noise) for node in self._names
        }
        self._failures = NodeFailures(cluster, self._names)

    def nodes(self) -> Sequence[str]:
        down = self.down_nodes()
        return [node for node in self._names if node not in down]

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        return list(spec.argv)

    def check_container(self, container: Container) -> None:
        """Nothing is started."""

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        began = self._clock.time()
        end, steps = self._end(spec, lease, began)
        until = began + end.elapsed_s
        reports: list[StepReport] = []
        early: list[EarlyStop] = []

        def ask(rule: StopRule, done: SimulatedStep) -> bool:
            reports.append(self.workload.step(spec.config, done.number, done.step_time_s))
            if found := rule(reports):
                early.append(found)
            return found is not None

        checks = [(began + done.at_s, partial(ask, stop_rule, done)) for done in steps if stop_rule]
        self._clock.sleep(until, spec.name, stop, checks)
        now = self._clock.time()
        if early:
            end = Evidence(Termination.STOPPED_EARLY, now - began, early[0], nodes=lease.nodes)
        elif now < until:  # only a stop ends a sleep too early
            end = Evidence(Termination.STOPPED, now - began, nodes=lease.nodes)
        return classify(end)

    def settle(self, names: Iterable[str]) -> None:
        """Do nothing: no trial is ever left running."""

    def down_nodes(self) -> set[str]:
        now = self._clock.time()
        return {node for _, node in self._failures.between(now - self.cluster.repair_s, now)}

    def time_left_s(self) -> float | None:
        limit_s = self.cluster.time_s
        return None if limit_s is None else self._start + limit_s - self._clock.time()

    def _end(
        self, spec: TrialSpec, lease: Lease, began: float
    ) -> tuple[Evidence, list[SimulatedStep]]:
        """Evidence of a trial that begins now, and its steps until its end."""
        chance = random.Random(f"{self.cluster.seed}/{spec.name}")
        slowness = max(self._slowness[node] for node in lease.nodes)
        evidence, steps = simulate(spec, lease, self.cluster, self.workload, slowness, chance)
        for at, node in self._failures.between(
            began - self.cluster.repair_s, began + evidence.elapsed_s
        ):
            if node in lease.nodes:
                elapsed_s = max(0.0, at - began) + NODE_LOSS_S
                said = f"srun: error: Node failure on {node}\n"
                evidence = Evidence(
                    Termination.EXITED,
                    elapsed_s,
                    stderr=said,
                    nodes=lease.nodes,
                    down_nodes=frozenset({node}),
                    texts=SRUN_TEXTS,
                )
                return evidence, [step for step in steps if step.at_s < elapsed_s - NODE_LOSS_S]
        return evidence, steps


class NodeFailures:
    """Nodes fail independently, at a constant rate (a Poisson process), from ``EPOCH`` on.

    One stream for the whole cluster, drawn only as far as needed: it is the same for every session,
    and its cost does not grow with the number of nodes.
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
