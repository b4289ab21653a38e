"""Launching trials in steps that outlive them; see :mod:`slurm.srun.kept_step`."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace

from foundation.writing import write_private
from slurm import fork_server
from slurm.forked_rank import read_at_start
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import clear_attempt, gather
from slurm.outcome.kinds import Kind
from slurm.outcome.rank_ends import first_failure, note_failures
from slurm.outcome.step_log import StopRule
from slurm.outcome.texts import NO_TEXTS
from slurm.outcome.watch import Termination, Watched, ended_by_others, watch
from slurm.rendezvous import rendezvous_environment
from slurm.srun.allocation import Allocation
from slurm.srun.command import srun_argv, srun_environment
from slurm.srun.ending import StepEnder
from slurm.srun.kept_step import KeptStep, requirements
from slurm.srun.pacing import LaunchPacing
from slurm.srun.site import Site
from slurm.srun.texts import SRUN_TEXTS
from slurm.trial import Lease, TrialSpec

_LET_GO_S = 10.0  # for a step with nothing left to do to end by itself


class KeptLaunches:
    """Runs trials in kept steps, and ends steps that are in a trial's way; for several threads.

    A step is kept only if every rank of its trial is known to have ended, and none first by a
    signal: Slurm reports the kernel's out-of-memory kills only when a step ends. After any other
    end the step is ended, and the next trial gets a new one.
    """

    def __init__(
        self, site: Site, allocation: Allocation, ender: StepEnder, pacing: LaunchPacing
    ) -> None:
        self._site = site
        self._allocation = allocation
        self._ender = ender
        self._pacing = pacing
        self._waiting = _Waiting()

    def make_way(self, lease: Lease, most: int) -> None:
        """End idle steps on these nodes, and the oldest of more than ``most`` elsewhere."""
        _, others = self._waiting.take(lease)
        self._end_idle([*others, *self._waiting.take_oldest(most)])

    def close(self) -> None:
        self._end_idle(self._waiting.take_oldest(0))

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None,
        most: int,
    ) -> Outcome:
        """Run a trial that ``can_be_forked``; see ``Launcher.run``.

        No more than ``most`` idle steps may stay beside this trial's.
        """
        clear_attempt(spec.directory)
        if spec.obstacle:
            return Outcome(Kind.LAUNCH_FAILURE, message=spec.obstacle)
        wanted = requirements(spec, lease)
        kept, others = self._waiting.take(lease, wanted)
        self._end_idle([*others, *self._waiting.take_oldest(most)])
        if kept is None:
            if not self._pacing.wait(stop):
                return Outcome(Kind.CANCELLED, message="stopped before it was launched")
            kept = self._launch(spec, lease, wanted)
        try:
            self._write_command(spec, lease, kept)
            env = {**spec.env, **rendezvous_environment(spec, self._address(lease))}
            kept.start(spec, env)
            watched = watch(spec, kept.over, stop, stop_rule)
        except BaseException:
            self._end(kept, spec)  # whatever went wrong, nothing is left
            kept.finish()
            raise
        return self._conclude(kept, spec, lease, watched)

    def _conclude(self, kept: KeptStep, spec: TrialSpec, lease: Lease, watched: Watched) -> Outcome:
        severed = ended_by_others(kept.step.srun, watched, "srun")
        if watched.termination is not Termination.EXITED:
            kept.terminate(spec.grace_s)
        ended = watched.termination in (Termination.EXITED, Termination.STOPPED_EARLY)
        killed = (first_failure(kept.codes) or 0) < 0 and watched.early_stop is None
        stuck: tuple[str, ...] = ()
        undead, down = "", set[str]()
        if ended and kept.all_ended and kept.alive and not killed:
            unwritten = kept.finish()
            self._waiting.give_back(kept)
        else:
            stuck, undead = self._end(kept, spec, doubtful=bool(severed))
            unwritten = kept.finish()
            down = self._allocation.known_down_nodes()
        code = kept.exit_code
        # Slurm's word of a kill by the kernel may be about a helper of an earlier trial, which went
        # on without it.
        by_kernel = first_failure(kept.codes) in (None, -signal.SIGKILL)
        texts = SRUN_TEXTS if by_kernel else replace(SRUN_TEXTS, host_oom=NO_TEXTS.host_oom)
        evidence = gather(
            spec,
            lease,
            watched,
            kept.step.srun.returncode if code is None else code,
            down_nodes=down,
            stuck_nodes=stuck,
            severed=severed or undead,
            texts=texts,
            unwritten=unwritten,
            said=note_failures(spec, lease, kept.codes),
        )
        return classify(evidence)

    def _launch(self, spec: TrialSpec, lease: Lease, wanted: object) -> KeptStep:
        assert spec.kept is not None
        of_step = _step_spec(spec)
        cpus = self._allocation.cpus_per_node
        argv = srun_argv(of_step, lease, self._site, cpus)
        address = self._address(lease)
        environ = srun_environment(of_step, lease, self._site, address, os.environ, cpus)
        environ["SLURM_JOB_ID"] = self._allocation.job
        return KeptStep(of_step, lease, argv, environ, wanted)

    def _address(self, lease: Lease) -> str:
        return self._allocation.address(lease.nodes[0])

    def _write_command(self, spec: TrialSpec, lease: Lease, kept: KeptStep) -> None:
        argv = srun_argv(spec, lease, self._site, self._allocation.cpus_per_node)
        text = f"# forked in the step {kept.step.name}, which outlives the trial; alone it is\n"
        write_private(spec.directory / "command.txt", f"{text}{shlex.join(argv)}\n")

    def _end(
        self, kept: KeptStep, spec: TrialSpec, doubtful: bool = False
    ) -> tuple[tuple[str, ...], str]:
        """End a trial and its step; see ``StepEnder.end``."""
        if kept.all_ended:
            kept.let_go(_LET_GO_S)
        # A rank itself carries the step's name in its environment, what it has started the trial's.
        step = replace(kept.step, marks=kept.step.marks | {spec.name})
        return self._ender.end(step, 0.0, spec.stderr, doubtful)

    def _end_idle(self, steps: Sequence[KeptStep]) -> None:
        for kept in steps:
            kept.let_go(0.0)  # all of them, before waiting for any
        for kept in steps:
            kept.let_go(_LET_GO_S)
            self._ender.end(kept.step, 0.0, kept.said)
            kept.finish()


def _step_spec(spec: TrialSpec) -> TrialSpec:
    """The description of a step that serves trials like this one."""
    assert spec.kept is not None
    server = (spec.argv[0], fork_server.__file__, ",".join(spec.kept.modules))
    name = f"{spec.kept.mark}-{secrets.token_hex(4)}"
    env = dict(read_at_start(spec.env))  # each trial's ranks get the rest by their order
    return replace(spec, name=name, argv=server, env=env, timeout_s=float("inf"))


class _Waiting:
    """The idle steps; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: list[KeptStep] = []  # the newest last

    def take(self, lease: Lease, wanted: object = None) -> tuple[KeptStep | None, list[KeptStep]]:
        """Take the steps on these nodes: one that can serve a trial, and those in its way.

        No step can serve it if ``wanted``, the trial's :func:`requirements`, is None.
        """
        with self._lock:
            on_nodes = [k for k in self._steps if set(k.step.lease.nodes) & set(lease.nodes)]
            self._steps = [kept for kept in self._steps if kept not in on_nodes]
        fitting = [kept for kept in on_nodes if kept.alive and kept.requirements == wanted]
        return (fitting[0] if fitting else None), [k for k in on_nodes if k not in fitting[:1]]

    def take_oldest(self, most: int) -> list[KeptStep]:
        """Take the steps that have waited longest, beyond ``most``."""
        with self._lock:
            beyond = max(0, len(self._steps) - max(0, most))
            taken, self._steps = self._steps[:beyond], self._steps[beyond:]
        return taken

    def give_back(self, kept: KeptStep) -> None:
        with self._lock:
            self._steps.append(kept)
