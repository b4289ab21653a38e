"""Launching trials in steps with an agent in each task, which starts trials there one at a time.

A step may be kept from trial to trial: its ranks are then forked from processes that have the
trainer's imports done. So only the first trial waits for a step, and for Python and torch on all
its nodes; yet each has processes of its own, which no other can disturb.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from foundation.writing import write_private
from slurm.agents import TaskAgents
from slurm.forked_rank import parsed_python, read_at_start
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import Evidence, clear_attempt
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.outcome.texts import LauncherTexts
from slurm.outcome.watch import FAILURE_GRACE_S, Termination, Watched, watch
from slurm.srun.allocation import Allocation
from slurm.srun.command import contained, srun_argv, srun_environment, started_container
from slurm.srun.containers import FILE_NAME
from slurm.srun.ending import Step, StepEnder
from slurm.srun.site import Site
from slurm.srun.texts import OVER, SRUN_TEXTS
from slurm.trial import Lease, TrialSpec, rendezvous_environment


class LaunchPacing:
    """Keeps launches apart, for the controller's sake; for several threads."""

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
    """An srun whose tasks are agents; its connection with them is its standard input and output.

    Its standard error is Slurm's alone.

    ``step_spec`` is the step as a trial, which may never end; it can serve trials with the same
    :func:`requirements`, if it is kept at all.
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
        # Where ranks are forked from, those that find no memory still write the trial's result.
        grace_s = FAILURE_GRACE_S if requirements else 0.0
        folder = step_spec.directory  # its ranks' own folder may be in a container alone
        super().__init__("srun", argv, folder, environ, step_spec.world_size, grace_s)
        name = step_spec.name
        self.step = Step(name, lease, frozenset({name}), self.program)

    @property
    def usable(self) -> bool:
        """Whether it can be given a trial."""
        return self.alive and not self.channel.void

    def start(self, spec: TrialSpec, env: Mapping[str, str], **order: Any) -> None:
        modules = spec.kept.modules if spec.kept else ()
        super().start(spec, env, forked=self.requirements is not None, modules=modules, **order)

    def _take_output(self, data: bytes) -> None:
        self.channel.feed(data)

    def _send(self, data: bytes) -> None:
        assert self.program.stdin is not None
        self.program.stdin.write(data)
        self.program.stdin.flush()


def requirements(spec: TrialSpec, lease: Lease) -> object:
    """Properties that two trials must share for one step to serve both; None: it serves one."""
    if spec.kept is None or parsed_python(spec.argv) is None:  # it cannot be forked
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


_LET_GO_S = 10.0  # for a step with nothing left to do to end by itself


class Launches:
    """Runs trials in steps, and ends idle ones that are in a trial's way; for several threads.

    A step is kept for the next trial only if the trial's ranks were forked and every one is known
    to have ended, none first by a signal. After any other end the step is ended.
    """

    def __init__(
        self, site: Site, allocation: Allocation, ender: StepEnder, pacing: LaunchPacing
    ) -> None:
        self._site = site
        self._allocation = allocation
        self._ender = ender
        self._pacing = pacing
        self._waiting = _Waiting()

    def close(self) -> None:
        """End the steps that wait for a trial."""
        now = threading.Event()
        now.set()
        self._end_idle(self._waiting.take_oldest(0), now)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None,
        most: int,
    ) -> Outcome:
        """Run a trial; see ``Launcher.run``.

        No more than ``most`` idle steps may stay beside this trial's.
        """
        clear_attempt(spec.directory)
        spec = contained(spec, self._site)
        if spec.obstacle:
            return Outcome(Kind.LAUNCH_FAILURE, message=spec.obstacle)
        wanted = requirements(spec, lease)
        kept, others = self._waiting.take(lease, wanted)
        self._end_idle([*others, *self._waiting.take_oldest(most)], stop)
        if kept is None:
            if not self._pacing.wait(stop):
                return Outcome(Kind.CANCELLED, message="stopped before it was launched")
            kept = self._launch(spec, lease, wanted)
        try:
            self._write_command(spec, lease, kept)
            env = {**spec.env, **rendezvous_environment(spec, self._address(lease))}
            kept.start(spec, env)
            watched = watch(spec, kept.over, stop, stop_rule, lambda: kept.channel.failed)
            evidence = self._conclude(kept, spec, lease, watched, stop)
        except BaseException:
            self._end(kept, spec, stop)  # whatever went wrong, nothing is left
            kept.finish()
            raise
        return classify(evidence)

    def _conclude(
        self,
        kept: AgentStep,
        spec: TrialSpec,
        lease: Lease,
        watched: Watched,
        stop: threading.Event,
    ) -> Evidence:
        channel = kept.channel
        severed = kept.severed(spec, lease, watched)
        no_program, _ = channel.no_program(spec, lease)
        if watched.termination is not Termination.EXITED:
            kept.end_ranks(signal.SIGTERM, spec.grace_s)
        ended = watched.termination in (Termination.EXITED, Termination.STOPPED_EARLY)
        code = channel.exit_code
        killed = (code or 0) < 0 and watched.early_stop is None
        clean = ended and channel.all_gone and kept.alive and not (killed or severed or no_program)
        stuck, undead, down = tuple[str, ...](), "", set[str]()
        if kept.requirements is None or not clean:
            # An srun that gives up before any agent is there was refused its step.
            refused = not channel.greeted and (kept.program.poll() or 0) > 0
            stuck, undead = self._end(kept, spec, stop, bool(severed) and not refused)
            down = self._allocation.known_down_nodes() if not clean else set()
        kept.finish()
        severed = severed or undead
        texts = self._texts(kept, spec)
        evidence = kept.evidence(
            spec, lease, watched, severed, texts, down_nodes=down, stuck_nodes=stuck
        )
        self._allocation.over = self._allocation.over or bool(OVER.search(evidence.said))
        if kept.requirements is not None and clean:
            self._waiting.give_back(kept)
        return evidence

    def _texts(self, kept: AgentStep, spec: TrialSpec) -> LauncherTexts:
        """srun's lines, and those of a runtime that could have failed to start the container."""
        line = started_container(spec, self._site)
        if line is None:
            return SRUN_TEXTS
        started = len(kept.channel.greeted) == spec.world_size
        texts = line.runtime.texts(kept.channel.exit_code, started=started)
        return replace(SRUN_TEXTS, container=texts)

    def _launch(self, spec: TrialSpec, lease: Lease, wanted: object) -> AgentStep:
        of_step = _step_spec(spec) if wanted else spec
        cpus = self._allocation.cpus_per_node
        argv = srun_argv(replace(of_step, argv=()), lease, self._site, cpus)
        address = self._address(lease)
        environ = srun_environment(of_step, self._site, address, os.environ, cpus)
        environ["SLURM_JOB_ID"] = self._allocation.job
        if (line := started_container(of_step, self._site)) and line.file:
            write_private(spec.directory / FILE_NAME, line.file)
        return AgentStep(of_step, lease, argv, environ, wanted)

    def _address(self, lease: Lease) -> str:
        return self._allocation.address(lease.nodes[0])

    def _write_command(self, spec: TrialSpec, lease: Lease, kept: AgentStep) -> None:
        argv = srun_argv(spec, lease, self._site, self._allocation.cpus_per_node)
        name = kept.step.name
        step = f"# forked in the step {name}; alone it is\n" if kept.requirements else ""
        write_private(spec.directory / "command.txt", f"{step}{shlex.join(argv)}\n")

    def _end(
        self, kept: AgentStep, spec: TrialSpec, stop: threading.Event, doubtful: bool = False
    ) -> tuple[tuple[str, ...], str]:
        """End a trial and its step; see ``StepEnder.end``."""
        if kept.channel.all_gone:
            kept.let_go(_LET_GO_S)
        # A rank itself carries the step's name in its environment, what it has started the trial's.
        step = replace(kept.step, marks=kept.step.marks | {spec.name})
        answer = self._ender.end(step, kept.said, stop, doubtful)
        kept.listen()
        return answer

    def _end_idle(self, steps: Sequence[AgentStep], stop: threading.Event) -> None:
        for kept in steps:
            kept.let_go(0.0)  # all of them, before waiting for any
        for kept in steps:
            kept.let_go(_LET_GO_S)
            self._ender.end(kept.step, kept.said, stop)
            kept.finish()


def _step_spec(spec: TrialSpec) -> TrialSpec:
    """The description of a step that serves trials like this one."""
    assert spec.kept is not None
    name = f"{spec.kept.mark}-{secrets.token_hex(4)}"
    env = dict(read_at_start(spec.env))  # each trial's ranks get the rest by their order
    return replace(spec, name=name, env=env, timeout_s=float("inf"))


class _Waiting:
    """The idle steps; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: list[AgentStep] = []  # the newest last

    def take(self, lease: Lease, wanted: object = None) -> tuple[AgentStep | None, list[AgentStep]]:
        """Take the steps on these nodes: one that can serve a trial, and those in its way.

        No step can serve it if ``wanted``, the trial's :func:`requirements`, is None.
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
