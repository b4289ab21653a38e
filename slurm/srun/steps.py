"""Steps with an agent in each task, which starts trials there one at a time.

A step may be kept from trial to trial: its ranks are then forked from processes that have imported
the trainer. So only the first trial waits for a step, and for Python and torch on all its nodes;
yet each trial has processes of its own, which no other trial can disturb.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm.agents import FAILURE_GRACE_S, TaskAgents
from slurm.forked_rank import parsed_python, read_at_start
from slurm.srun.ending import Step
from slurm.trial import Lease, TrialSpec


class LaunchPacing:
    """Keeps a time interval between launches, to spare the controller; thread-safe."""

    def __init__(self, interval_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._monotonic = interval_s, monotonic
        self._turn = threading.Lock()
        self._last = float("-inf")

    def wait(self, stop: threading.Event) -> bool:
        """Wait until a launch is due; False if stopped meanwhile."""
        with self._turn:
            if stop.wait(max(0.0, self._last + self._interval_s - self._monotonic())):
                return False
            self._last = self._monotonic()
        return True


class AgentStep(TaskAgents):
    """An srun whose tasks are agents; its standard input and output connect the driver with them.

    Its standard error has only Slurm's messages. ``step_spec`` describes the step as a trial, which
    may have no end; a kept step can serve trials with the same :func:`requirements`.
    """

    def __init__(
        self,
        step_spec: TrialSpec,
        lease: Lease,
        argv: Sequence[str],
        environ: Mapping[str, str],
        requirements: object,
    ) -> None:
        self.requirements = requirements
        # Forked ranks that run out of memory still write the trial's result.
        grace_s = FAILURE_GRACE_S if requirements else 0.0
        folder = step_spec.directory  # the ranks' own folder may exist only in a container
        super().__init__("srun", argv, folder, environ, step_spec.world_size, grace_s)
        name = step_spec.name
        self.step = Step(name, lease, frozenset({name}), self.program)

    @property
    def usable(self) -> bool:
        return self.alive and not self.channel.void

    def start(self, spec: TrialSpec, lease: Lease, env: Mapping[str, str], **order: Any) -> None:
        modules = spec.kept.modules if spec.kept else ()
        forked = self.requirements is not None
        super().start(spec, lease, env, forked=forked, modules=modules, **order)

    def _take_output(self, data: bytes) -> None:
        self.channel.feed(data)

    def _send(self, data: bytes) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(data)
        self.program.stdin.flush()


def requirements(spec: TrialSpec, lease: Lease) -> object:
    """Properties that trials must share to run in one step; None: the step serves one trial."""
    if spec.kept is None or parsed_python(spec.argv) is None:  # its ranks cannot be forked
        return None
    return (
        lease.nodes,
        spec.ranks_per_node,
        spec.cpus_per_rank,
        spec.memory_bytes_per_rank,
        spec.argv[0],
        spec.kept,
        read_at_start(spec.env),
    )


def spec_of_step(spec: TrialSpec) -> TrialSpec:
    """The description of a step that serves trials like this one."""
    assert spec.kept is not None
    name = f"{spec.kept.mark}-{secrets.token_hex(4)}"
    env = dict(read_at_start(spec.env))  # ranks get the other variables with each trial's order
    return replace(spec, name=name, env=env, timeout_s=float("inf"))


class IdleSteps:
    """Steps that wait for their next trial; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: list[AgentStep] = []  # the newest last

    def take(self, lease: Lease, wanted: object) -> tuple[AgentStep | None, list[AgentStep]]:
        """Take the steps on these nodes: one that can serve a trial (or None), and the others.

        ``wanted`` is the trial's :func:`requirements`.
        """
        with self._lock:
            on_nodes = [k for k in self._steps if set(k.step.lease.nodes) & set(lease.nodes)]
            self._steps = [kept for kept in self._steps if kept not in on_nodes]
        fitting = [kept for kept in on_nodes if kept.usable and kept.requirements == wanted]
        return (fitting[0] if fitting else None), [k for k in on_nodes if k not in fitting[:1]]

    def take_oldest(self, most: int) -> list[AgentStep]:
        """Take the steps that have waited longest, beyond ``most``."""
        with self._lock:
            beyond = max(0, len(self._steps) - max(0, most))
            taken, self._steps = self._steps[:beyond], self._steps[beyond:]
        return taken

    def give_back(self, kept: AgentStep) -> None:
        with self._lock:
            self._steps.append(kept)
