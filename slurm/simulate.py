"""A cluster that exists on paper only: trials end as a model and a seed say, in virtual time.

The driver, the pool and the journal are the real ones, and so is the verdict on a trial: this
launcher makes up what a trial would leave (a result, the lines that srun or torch would write) and
:mod:`slurm.outcome` classifies it. What happens depends on the seed, the trial's name (number and
attempt), its nodes and the virtual time only.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from slurm.clock import Check, VirtualClock
from slurm.core import Launcher, LauncherError, Lease, Outcome, TrialSpec
from slurm.evidence import Evidence
from slurm.outcome import classify
from slurm.steps import Early, Hopeless, Step
from slurm.watch import End

EPOCH = 946_684_800.0  # 2000-01-01, UTC: nobody takes it for a real run's time
START_UP_SPREAD = 0.1  # standard deviation of the logarithm
LAUNCH_FAILURE_S = 5.0  # until srun gives a launch up
NODE_LOSS_S = 60.0  # until Slurm has noticed that a node does not answer
OOM_EXIT_CODE = CRASH_EXIT_CODE = 1
INVALID_EXIT_CODE = 2


class Price(NamedTuple):
    """What one configuration costs."""

    step_time_s: float
    needed_bytes: float  # of the fullest rank, beside the memory there is
    peak_bytes: float  # of the same rank, as the trainer reports it
    refused: bool = False  # by the trainer, whatever its memory


class Workload(Protocol):
    """What trials would do on these nodes, without any chance in it."""

    warmup_steps: int
    measured_steps: int
    memory_bytes: int  # that a rank has

    def price(self, config: Mapping[str, Any]) -> Price:
        """What the configuration costs, the same each time."""
        ...

    def figures(
        self, config: Mapping[str, Any], step_times_s: Sequence[float], peak_bytes: float
    ) -> Mapping[str, Any]:
        """The result of a success whose measured steps took so long."""
        ...

    def step(self, config: Mapping[str, Any], number: int, step_time_s: float) -> Step:
        """What the trainer says after a step."""
        ...


@dataclass(frozen=True)
class Cluster:
    """Size and troubles of a simulated cluster.

    Attributes:
        nodes: how many there are.
        seed: of all that chance decides.
        start_up_s: from the launch of a trial to its first step, in the median.
        noise: standard deviation of the logarithm of a trial's speed, and of each of its steps'.
        node_noise: of a node's speed; a trial is as slow as its slowest node.
        crash: share of the attempts that crash, at any moment.
        hang: share that stop making progress, at any moment.
        launch_failure: share that srun cannot launch.
        node_failures_per_day: of one node; it takes its trial along.
        repair_s: until a node that failed is up again, for the next session.
        time_s: until the allocation ends; None: never.
        max_concurrent: trials that may run at once.
    """

    nodes: int
    seed: int = 0
    start_up_s: float = 60.0
    noise: float = 0.02
    node_noise: float = 0.01
    crash: float = 0.005
    hang: float = 0.005
    launch_failure: float = 0.005
    node_failures_per_day: float = 0.0005
    repair_s: float = 14_400.0
    time_s: float | None = None
    max_concurrent: int = Launcher.max_concurrent


class SimulatedLauncher(Launcher):
    """Trials of a workload on a cluster, in virtual time.

    Args:
        cluster: its size and troubles.
        workload: what the trials would do.
        start: virtual time at which this session begins, seconds since the epoch.

    Raises:
        LauncherError: if there are no nodes.
    """

    name = "simulate"
    simulated = True

    def __init__(self, cluster: Cluster, workload: Workload, start: float = EPOCH) -> None:
        if cluster.nodes < 1:
            raise LauncherError(f"a cluster of {cluster.nodes} nodes has no place for a trial")
        self.cluster = cluster
        self.workload = workload
        self.max_concurrent = cluster.max_concurrent
        self.clock = self._clock = VirtualClock(start)
        self._start = start
        digits = len(str(cluster.nodes))
        self._names = tuple(f"n{i:0{digits}d}" for i in range(1, cluster.nodes + 1))
        speeds = random.Random(f"{cluster.seed}/speeds")
        self._slowness = {
            node: speeds.lognormvariate(0.0, cluster.node_noise) for node in self._names
        }
        self._failures = _Failures(cluster, self._names)

    def nodes(self) -> Sequence[str]:
        down = self.down_nodes()
        return [node for node in self._names if node not in down]

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        return list(spec.argv)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        hopeless: Hopeless | None = None,
    ) -> Outcome:
        began = self._clock.time()
        end, steps = self._end(spec, lease, began)
        until = began + end.elapsed_s
        speaker = _Speaker(spec, steps, self.workload, hopeless)
        self._clock.sleep(until, spec.name, stop, speaker.checks(began) if hopeless else ())
        now = self._clock.time()
        if speaker.early:
            end = Evidence(End.EARLY, now - began, speaker.early, nodes=lease.nodes)
        elif now < until:  # only a stop ends a sleep too early
            end = Evidence(End.STOPPED, now - began, nodes=lease.nodes)
        return classify(end)

    def settle(self, names: Iterable[str]) -> None:
        """Nothing is ever left running."""

    def down_nodes(self) -> set[str]:
        now = self._clock.time()
        return {node for _, node in self._failures.between(now - self.cluster.repair_s, now)}

    def time_left_s(self) -> float | None:
        limit_s = self.cluster.time_s
        return None if limit_s is None else self._start + limit_s - self._clock.time()

    def _end(self, spec: TrialSpec, lease: Lease, began: float) -> tuple[Evidence, list[_Done]]:
        """What a trial that begins now will leave, and after how long; and its steps until then."""
        chance = random.Random(f"{self.cluster.seed}/{spec.name}")
        evidence, steps = self._undisturbed(spec, lease, chance)
        for at, node in self._failures.between(
            began - self.cluster.repair_s, began + evidence.elapsed_s
        ):
            if node in lease.nodes:
                elapsed_s = max(0.0, at - began) + NODE_LOSS_S
                stderr = f"srun: error: Node failure on {node}\n"
                lost = Evidence(End.EXITED, elapsed_s, stderr=stderr, nodes=lease.nodes)
                return lost, [step for step in steps if step.at_s < elapsed_s - NODE_LOSS_S]
        return evidence, steps

    def _undisturbed(
        self, spec: TrialSpec, lease: Lease, chance: random.Random
    ) -> tuple[Evidence, list[_Done]]:
        """The same, on nodes that do not fail.

        Chance is asked the same questions in the same order whatever the answers are, so that one
        rate that changes leaves all other troubles as they were.
        """
        cluster, work = self.cluster, self.workload
        fails, crashes, hangs, when, rank = (chance.random() for _ in range(5))
        start_up_s = cluster.start_up_s * chance.lognormvariate(0.0, START_UP_SPREAD)
        slowness = chance.lognormvariate(0.0, cluster.noise)
        slowness *= max(self._slowness[node] for node in lease.nodes)
        step_s, needed_bytes, peak_bytes, refused = work.price(spec.config)
        steps_s = [
            step_s * slowness * chance.lognormvariate(0.0, cluster.noise)
            for _ in range(work.warmup_steps + work.measured_steps)
        ]
        reached = int(when * len(steps_s))
        task = int(rank * spec.world_size)
        node = lease.nodes[task // spec.ranks_per_node]
        # Logs grow after the start and after every step: so long they are quiet.
        quiet_s = [start_up_s, *steps_s]
        left: dict[str, Any] = {"exit_code": 0}
        if fails < cluster.launch_failure:
            quiet_s = [LAUNCH_FAILURE_S]
            left = _launch_failure(node)
        elif refused:
            quiet_s = [start_up_s]
            left = _refused()
        elif needed_bytes > work.memory_bytes:
            quiet_s = [start_up_s]  # the first micro-batch shows it
            left = _out_of_memory(node, task, needed_bytes, work.memory_bytes)
        elif crashes < cluster.crash:
            quiet_s = quiet_s[: reached + 2]
            left = _crash(node, task)
        elif hangs < cluster.hang:
            quiet_s = [*quiet_s[: reached + 1], math.inf]
        else:
            measured_s = steps_s[work.warmup_steps :]
            left["result"] = work.figures(spec.config, measured_s, peak_bytes)
        end, elapsed_s = _watched(quiet_s, spec)
        at_s = itertools.accumulate(quiet_s)
        next(at_s)  # the start
        steps = [
            _Done(at, number, step_s)
            for number, (at, step_s) in enumerate(zip(at_s, quiet_s[1:], strict=True), start=1)
            if at < elapsed_s
        ]
        evidence = Evidence(
            end,
            elapsed_s,
            nodes=lease.nodes,
            timeout_s=spec.timeout_s,
            no_progress_timeout_s=spec.no_progress_timeout_s,
            **(left if end is End.EXITED else {}),
        )
        return evidence, steps


class _Done(NamedTuple):
    """A step of a trial."""

    at_s: float  # its end, since the trial's start
    number: int
    step_time_s: float


class _Speaker:
    """A trial's word on its steps, in virtual time."""

    def __init__(
        self, spec: TrialSpec, done: list[_Done], work: Workload, hopeless: Hopeless | None
    ) -> None:
        self.early: Early | None = None
        self._spec, self._done, self._work, self._hopeless = spec, done, work, hopeless
        self._said: list[Step] = []

    def checks(self, began: float) -> list[Check]:
        """The moments at which somebody listens."""
        return [(began + done.at_s, partial(self._say, done)) for done in self._done]

    def _say(self, done: _Done) -> bool:
        self._said.append(self._work.step(self._spec.config, done.number, done.step_time_s))
        self.early = self._hopeless(self._said) if self._hopeless else None
        return self.early is not None


def _watched(quiet_s: Sequence[float], spec: TrialSpec) -> tuple[End, float]:
    """How :func:`slurm.watch.watch` ends when the logs grow after each of these times."""
    patience_s = spec.no_progress_timeout_s or math.inf
    elapsed_s = 0.0
    for quiet in quiet_s:
        seen_s = elapsed_s + min(quiet, patience_s)
        if seen_s >= spec.timeout_s:
            return End.TIMEOUT, spec.timeout_s
        if quiet >= patience_s:
            return End.NO_PROGRESS, seen_s
        elapsed_s = seen_s
    return End.EXITED, elapsed_s


def _launch_failure(node: str) -> dict[str, Any]:
    line = f"Task launch for StepId=1.0 failed on node {node}: Communication connection failure"
    return {"exit_code": 1, "stderr": f"srun: error: {line}\n"}


def _crash(node: str, task: int) -> dict[str, Any]:
    said = f"[rank{task}]: RuntimeError: simulated crash\n"
    srun = f"srun: error: {node}: task {task}: Exited with exit code {CRASH_EXIT_CODE}\n"
    return {"exit_code": CRASH_EXIT_CODE, "stderr": said + srun}


def _refused() -> dict[str, Any]:
    message = "the trainer refuses this configuration"
    result = {"status": "invalid", "where": "config", "message": message}
    return {"exit_code": INVALID_EXIT_CODE, "result": result}


def _out_of_memory(node: str, task: int, needed_bytes: float, memory_bytes: int) -> dict[str, Any]:
    need = f"needs {needed_bytes / 2**30:.1f} GiB of {memory_bytes / 2**30:.1f} GiB"
    return {
        "exit_code": OOM_EXIT_CODE,
        "stderr": f"srun: error: {node}: task {task}: Exited with exit code {OOM_EXIT_CODE}\n",
        "result": {
            "status": "oom",
            "where": "forward",
            "message": need,
            "rank": task,
            "peak_memory_bytes": memory_bytes,
        },
    }


class _Failures:
    """Nodes fail independently, at a constant rate (a Poisson process), from ``EPOCH`` on.

    One stream for the whole cluster, made as far as it is asked for: the same for every session,
    and its cost does not grow with the nodes.
    """

    def __init__(self, cluster: Cluster, names: Sequence[str]) -> None:
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
