"""`train --elastic` on a virtual clock: the driver is real, nodes and steps are drawn.

    python -m benchmarks.elastic --virtual --seeds 3 --interruptions 40 --out FOLDER

Planning, journal and accounting are the product's own. What it cannot know is drawn: start-ups that
grow with the nodes, stalls of checkpoints, the time until one is written, and memoryless failures.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurm import AllocationState, Kind, Launcher, Lease, Outcome, TrialSpec
from slurm.clock import Clock
from slurm.outcome.step_log import StepLog, StopRule
from slurm.trial import STDOUT_NAME
from workflows.elastic import train_elastic

NODES = 4
SPEED_UP, JITTER = 0.9, 0.05  # n nodes are n**0.9 times as fast; of the logarithm of a step
# In steps of one node:
STALL, WRITE = 0.1, 1.3
START_UP, PER_NODE, LATE = 4.0, 0.8, 0.8  # the last is drawn for each start, in the mean
DETECTION = {"node": 10.0, "rank": 0.5, "job": 1.0, "driver": 0.0}


class KilledError(BaseException):
    """The driver is gone."""


class Virtual(Clock, Launcher):
    """Nodes of an allocation, and the time."""

    name = "virtual"

    def __init__(self, draw: random.Random, step_s: float, mean_s: float) -> None:
        self.now, self.draw, self.step_s, self.mean_s = 1.8e9, draw, step_s, mean_s
        self.clock = self
        self.done: list[str] = []
        self.allocate()

    def allocate(self) -> None:
        """Another job of one to four nodes."""
        self.gone, self.dead = False, set[str]()
        self.now += 100 * self.step_s
        self.count = self.draw.randint(1, NODES)

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def nodes(self) -> Sequence[str]:
        return [f"v{number}" for number in range(self.count)]

    def down_nodes(self) -> set[str]:
        return self.dead

    def allocation_state(self) -> AllocationState:
        return AllocationState.GONE if self.gone else AllocationState.HELD

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        raise NotImplementedError

    def settle(self, names: Iterable[str]) -> None:
        """Nothing outlives its driver here."""

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        config = json.loads((spec.directory / "config.json").read_text())
        count, begun_s = len(lease.nodes), self.now
        every, last = config["save_interval"], config["warmup_steps"] + config["measured_steps"]
        fails_s = begun_s + self.draw.expovariate(count / self.mean_s)
        save = Path(config["save"])
        steps = max((int(path.name[5:]) for path in save.glob("step-*")), default=0)
        late = self.draw.expovariate(1 / LATE)
        self.now += self.step_s * (START_UP + PER_NODE * count + late)
        lines, writes = list[str](), list[tuple[float, int]]()
        for number in range(1, last + 1):
            took_s = self.step_s / count**SPEED_UP * self.draw.lognormvariate(0, JITTER)
            stall_s = (
                STALL * self.step_s * self.draw.uniform(0.8, 1.2) if number % every == 0 else 0.0
            )
            if self.now + took_s + stall_s > fails_s:
                break
            self.now += took_s + stall_s
            told = {"step": number, "step_time_s": took_s, "finished_steps": steps + number}
            if stall_s:
                told["checkpoint_s"] = stall_s
                writes.append((self.now + WRITE * self.step_s / count, steps + number))
            lines.append(f"MESHTUNE_STEP {json.dumps(told)}\n")
        (spec.directory / STDOUT_NAME).write_text("".join(lines))
        whole = len(lines) == last
        if whole:
            writes.append((self.now, steps + last))
        elif self.now < fails_s and not lines:
            self.now = fails_s
        for ended_s, step in writes:
            if ended_s <= max(self.now, fails_s if not whole else self.now):
                (save / f"step-{step:08}").mkdir(parents=True, exist_ok=True)
        if stop_rule is not None:
            stop_rule(StepLog.reported(spec.directory))  # the last step has just ended
        if whole:
            return Outcome(Kind.OK, elapsed_s=self.now - begun_s, steps=last)
        how = self.draw.choice(["node", "node", "rank", "rank", "driver", "job"])
        self.done.append(how)
        os.utime(spec.directory / STDOUT_NAME, (self.now, self.now))
        self.now = max(self.now, fails_s) + DETECTION[how] * self.step_s
        if how == "driver":
            raise KilledError
        lost = (self.draw.choice(lease.nodes),) if how == "node" else ()
        self.dead |= {*lost}
        self.gone = how == "job"
        kind = Kind.NODE_FAILURE if how == "node" else Kind.PREEMPTED
        elapsed_s = self.now - begun_s
        return Outcome(kind, elapsed_s=elapsed_s, steps=len(lines), lost_nodes=lost)


def train(
    run: Path, out: Path, step_s: float, mean_s: float, count: int, draw: random.Random
) -> list[str]:
    """Train a run's winner through so many interruptions; what they were.

    ``step_s`` is what a step takes on one node, ``mean_s`` the time between two failures of one.
    """
    shutil.rmtree(out, ignore_errors=True)
    virtual = Virtual(draw, step_s, mean_s)
    while len(virtual.done) < count or virtual.done[-1] == "driver":  # whose start has no end yet
        try:
            train_elastic(run, virtual, out, tokens=1e9)
        except KilledError:
            continue
        virtual.allocate()
    return virtual.done
