"""Evidence of a trial on a simulated cluster: a result, or messages of srun, torch, a trainer."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import BeforeValidator, Field

from foundation.values import Duration, seconds
from slurm.launcher import Launcher
from slurm.outcome.evidence import Evidence
from slurm.outcome.step_log import StepReport
from slurm.outcome.watch import Termination
from slurm.srun.texts import SRUN_TEXTS
from slurm.trial import Lease, TrialSpec

START_UP_SPREAD = 0.1  # standard deviation of the logarithm
LAUNCH_FAILURE_S = 5.0  # until srun gives up a launch
OOM_EXIT_CODE = CRASH_EXIT_CODE = 1
INVALID_EXIT_CODE = 2
MOST_NODES = 200_000  # no cluster has more; each has a name and a speed, which take memory
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class SimulatedCluster:
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES)]  # how many there are
    seed: Annotated[int, Field(ge=0)] = 0  # of all random numbers
    start_up_s: Duration = 60.0  # median time from the launch of a trial to its first step
    # standard deviation of the logarithm of a trial's speed, and of the speed of each step
    noise: Rate = 0.02
    node_noise: Rate = 0.01  # of a node's speed; a trial is as slow as its slowest node
    crash: Share = 0.005  # share of the attempts that crash, at any moment
    hang: Share = 0.005  # share of those that stop making progress, at any moment
    launch_failure: Share = 0.005  # share of those that srun cannot launch
    node_failures_per_day: Rate = 0.0005  # of one node; a failure ends the node's trial
    repair_s: Duration = 14_400.0  # until a failed node is up again, for the next session
    # until the allocation ends; None: never
    time_s: Annotated[float | None, BeforeValidator(seconds)] = None
    max_concurrent: Annotated[int, Field(ge=1)] = Launcher.max_concurrent  # trials at once


class Price(NamedTuple):
    step_time_s: float
    needed_bytes: float  # by the fullest rank
    peak_bytes: float  # of the same rank, as the trainer reports it
    refused: bool = False  # by the trainer, whatever its memory


class Workload(Protocol):
    """Deterministic behaviour of trials on these nodes."""

    warmup_steps: int
    measured_steps: int
    memory_bytes: int  # of a rank

    def price(self, config: Mapping[str, Any]) -> Price:
        """The cost of a configuration, the same each time."""
        ...

    def figures(
        self, config: Mapping[str, Any], step_times_s: Sequence[float], peak_bytes: float
    ) -> Mapping[str, Any]:
        """The result of a success with these measured steps."""
        ...

    def step(self, config: Mapping[str, Any], number: int, step_time_s: float) -> StepReport:
        """The trainer's report after a step."""
        ...


class SimulatedStep(NamedTuple):
    at_s: float  # its end, since the trial's start
    number: int
    step_time_s: float


def simulate(
    spec: TrialSpec,
    lease: Lease,
    cluster: SimulatedCluster,
    work: Workload,
    slowness: float,
    chance: random.Random,
) -> tuple[Evidence, list[SimulatedStep]]:
    """Evidence of a trial on nodes that do not fail, and its steps until its end.

    The same random numbers are drawn in the same order whatever they decide, so that a change of
    one rate leaves all other failures unchanged. ``slowness`` is the slowest node's factor.
    """
    fails, crashes, hangs, when, rank = (chance.random() for _ in range(5))
    start_up_s = cluster.start_up_s * chance.lognormvariate(0.0, START_UP_SPREAD)
    slowness *= chance.lognormvariate(0.0, cluster.noise)
    step_s, needed_bytes, peak_bytes, refused = work.price(spec.config)
    steps_s = [
        step_s * slowness * chance.lognormvariate(0.0, cluster.noise)
        for _ in range(work.warmup_steps + work.measured_steps)
    ]
    reached = int(when * len(steps_s))
    task = int(rank * spec.world_size)
    node = lease.nodes[task // spec.ranks_per_node]
    # Logs grow after the start and after every step; in between they are quiet.
    quiet_s = [start_up_s, *steps_s]
    left: dict[str, Any] = {"exit_code": 0}
    if fails < cluster.launch_failure:
        quiet_s = [LAUNCH_FAILURE_S]
        left = _launch_failure(node)
    elif refused or needed_bytes > work.memory_bytes:
        quiet_s = [start_up_s]  # the first micro-batch shows it
        memory = (needed_bytes, work.memory_bytes)
        left = _refused() if refused else _out_of_memory(node, task, *memory)
    elif crashes < cluster.crash:
        quiet_s = quiet_s[: reached + 2]
        left = _crash(node, task)
    elif hangs < cluster.hang:
        quiet_s = [*quiet_s[: reached + 1], math.inf]
    else:
        left["result"] = work.figures(spec.config, steps_s[work.warmup_steps :], peak_bytes)
    return _seen(spec, lease, quiet_s, left)


def _seen(
    spec: TrialSpec, lease: Lease, quiet_s: Sequence[float], left: Mapping[str, Any]
) -> tuple[Evidence, list[SimulatedStep]]:
    """Evidence, with the fields ``left``, and steps of a trial with these pauses in its logs."""
    end, elapsed_s = _watched(quiet_s, spec)
    ends_s = itertools.accumulate(quiet_s)
    next(ends_s)  # of the start
    steps = [
        SimulatedStep(at_s, number, step_s)
        for number, (at_s, step_s) in enumerate(zip(ends_s, quiet_s[1:], strict=True), start=1)
        if at_s < elapsed_s
    ]
    evidence = Evidence(
        end,
        elapsed_s,
        nodes=lease.nodes,
        timeout_s=spec.timeout_s,
        no_progress_timeout_s=spec.no_progress_timeout_s,
        steps=len(steps),
        texts=SRUN_TEXTS,
        **(left if end is Termination.EXITED else {}),
    )
    return evidence, steps


def _watched(quiet_s: Sequence[float], spec: TrialSpec) -> tuple[Termination, float]:
    """How and when :func:`slurm.outcome.watch.watch` would end for logs with these pauses."""
    patience_s = spec.no_progress_timeout_s or math.inf
    elapsed_s = 0.0
    for quiet in quiet_s:
        seen_s = elapsed_s + min(quiet, patience_s)
        if seen_s >= spec.timeout_s:
            return Termination.TIMEOUT, spec.timeout_s
        if quiet >= patience_s:
            return Termination.NO_PROGRESS, seen_s
        elapsed_s = seen_s
    return Termination.EXITED, elapsed_s


def _launch_failure(node: str) -> dict[str, Any]:
    line = f"Task launch for StepId=1.0 failed on node {node}: Communication connection failure"
    return {"exit_code": 1, "stderr": f"srun: error: {line}\n"}


def _crash(node: str, task: int) -> dict[str, Any]:
    said = f"[rank{task}]: RuntimeError: simulated crash\n"
    return {"exit_code": CRASH_EXIT_CODE, "stderr": said, "failed_on": node}


def _refused() -> dict[str, Any]:
    message = "the trainer refuses this configuration"
    result = {"status": "invalid", "where": "config", "message": message}
    return {"exit_code": INVALID_EXIT_CODE, "result": result}


def _out_of_memory(node: str, task: int, needed_bytes: float, memory_bytes: int) -> dict[str, Any]:
    need = f"needs {needed_bytes / 2**30:.1f} GiB of {memory_bytes / 2**30:.1f} GiB"
    return {
        "exit_code": OOM_EXIT_CODE,
        "failed_on": node,
        "result": {
            "status": "oom",
            "where": "forward",
            "message": need,
            "rank": task,
            "peak_memory_bytes": memory_bytes,
        },
    }
