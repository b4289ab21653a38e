"""The srun launcher: one job step per trial, and proof that it is gone."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from foundation.files import has_room
from foundation.writing import write_private
from slurm import processes
from slurm.launcher import (
    AllocationGoneError,
    AllocationState,
    Launcher,
    LauncherError,
    LauncherOptions,
)
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import clear_attempt, gather
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.outcome.watch import Termination, ended_by_others, watch
from slurm.srun.allocation import Allocation, JobStep
from slurm.srun.command import srun_argv, srun_environment
from slurm.srun.ending import Step, StepEnder
from slurm.srun.kept_launches import KeptLaunches
from slurm.srun.kept_step import can_be_forked
from slurm.srun.pacing import LaunchPacing
from slurm.srun.proof import NodeProof
from slurm.srun.shell import PATIENCE_S, SlurmError
from slurm.srun.site import Site
from slurm.srun.texts import SRUN_TEXTS
from slurm.trial import STDERR_NAME, STDOUT_NAME, Lease, TrialSpec, carries, kept_mark

GONE_DEADLINE_S = 60.0


class SrunLauncher(Launcher):
    """Starts trials as steps of an allocation; default the one this process is in.

    ``gone_deadline_s`` and ``patience_s`` are those of a :class:`StepEnder`.
    """

    name = "srun"
    shares_launches = True

    def __init__(
        self,
        site: Site,
        allocation: Allocation | None = None,
        gone_deadline_s: float = GONE_DEADLINE_S,
        proof: NodeProof | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.site = site
        self.allocation = allocation or Allocation.current()
        self.max_concurrent = site.max_concurrent_steps
        self._proof = proof or NodeProof(site, self.allocation)
        self._unproven: set[str] = set()  # nodes that may have processes of an earlier driver
        self._pacing = LaunchPacing(site.launch_interval_s)
        self._ender = StepEnder(self.allocation, self._proof, gone_deadline_s, patience_s)
        self._kept = KeptLaunches(site, self.allocation, self._ender, self._pacing)
        self._running = Counter[str]()  # trials, by name

    @classmethod
    def from_options(cls, options: LauncherOptions) -> SrunLauncher:
        return cls(Site.load(options.site))

    def nodes(self) -> Sequence[str]:
        return self.allocation.nodes

    def gpus_per_node(self) -> int | None:
        granted = os.environ.get("SLURM_GPUS_ON_NODE", "")  # set only where GPUs were asked for
        gpus = int(granted) if granted.isdecimal() else self.allocation.gpus_per_node()
        return gpus or None  # Slurm need not know of the GPUs that there are

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        return srun_argv(spec, lease, self.site, self.allocation.cpus_per_node)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        self._running[spec.name] += 1
        try:
            most = self.site.max_concurrent_steps - self._running.total()
            if can_be_forked(spec):
                return self._kept.run(spec, lease, stop, stop_rule, most)
            self._kept.make_way(lease, most)
            return self._run_alone(spec, lease, stop, stop_rule)
        finally:
            self._running[spec.name] -= 1

    def _run_alone(
        self, spec: TrialSpec, lease: Lease, stop: threading.Event, stop_rule: StopRule | None
    ) -> Outcome:
        """Run the trial in a step of its own."""
        argv = self.command(spec, lease)
        clear_attempt(spec.directory)
        write_private(spec.directory / "command.txt", shlex.join(argv) + "\n")
        if spec.obstacle:
            return Outcome(Kind.LAUNCH_FAILURE, message=spec.obstacle)
        if not self._pacing.wait(stop):
            return Outcome(Kind.CANCELLED, message="stopped before it was launched")
        step = self._start(spec, lease, argv)
        unwritten = ""

        def exited() -> bool:
            nonlocal unwritten
            done = step.srun.poll() is not None
            if not has_room(spec.directory):
                # After a write that fails, srun writes nothing more, and does not say so.
                unwritten = "output of srun, perhaps: the disk was full while it ran"
            return done

        try:
            watched = watch(spec, exited, stop, stop_rule)
        except BaseException:
            self._ender.end(step, spec.grace_s, spec.stderr)  # whatever went wrong, nothing is left
            raise
        grace_s = 0.0 if watched.termination is Termination.EXITED else spec.grace_s
        severed = ended_by_others(step.srun, watched, "srun")
        stuck, undead = self._ender.end(step, grace_s, spec.stderr, doubtful=bool(severed))
        evidence = gather(
            spec,
            lease,
            watched,
            step.srun.returncode,
            # Whatever srun's exit code: it was seen to be 0 after a node had died.
            down_nodes=self.allocation.known_down_nodes(),
            stuck_nodes=stuck,
            severed=severed or undead,
            texts=SRUN_TEXTS,
            unwritten=unwritten,
        )
        return classify(evidence)

    def _start(self, spec: TrialSpec, lease: Lease, argv: Sequence[str]) -> Step:
        cpus, address = self.allocation.cpus_per_node, self.allocation.address(lease.nodes[0])
        environ = srun_environment(spec, lease, self.site, address, os.environ, cpus)
        environ["SLURM_JOB_ID"] = self.allocation.job
        with (
            (spec.directory / STDOUT_NAME).open("wb") as stdout,
            (spec.directory / STDERR_NAME).open("wb") as stderr,
        ):
            child = subprocess.Popen(
                argv,
                cwd=spec.started_in,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
            )
        return Step(spec.name, lease, frozenset({spec.name}), child)

    def settle(self, names: Iterable[str]) -> None:
        """End what a killed driver left: sruns that still wait for their step, and steps.

        The controller may have forgotten steps since, so all nodes are asked, too. Nodes not proven
        free are treated as down.

        Raises LauncherError if no node is proven free, or a step of another job does not end.
        """
        wanted = set(names)
        if not wanted:
            return
        left_behind = processes.with_environ(lambda env: carries(env, wanted))
        sruns = {pid for pid in left_behind if processes.name(pid) == "srun"}

        def left() -> list[JobStep]:
            steps = self.allocation.steps(of_user=True)
            return [s for s in steps if {s.name, kept_mark(s.name)} & wanted]

        def waiting() -> bool:
            return any(processes.is_running(pid) for pid in sruns)

        signals = iter([signal.SIGTERM])

        def end_waiting() -> None:
            processes.send(sruns, next(signals, signal.SIGKILL))

        steps = self._ender.until_gone(left, waiting, end_waiting) or []
        elsewhere = [s for s in steps if s.job != self.allocation.job]
        elsewhere = [s for s in elsewhere if self._held_elsewhere(s)]
        nodes = self.nodes()
        self._unproven.update(self._proof.unproven(nodes, wanted))
        if elsewhere or self._unproven >= set(nodes):
            where = ", ".join(f"{s.id} on {s.nodes}" for s in elsewhere or steps)
            raise LauncherError(
                f"steps of an earlier driver would not end ({where or ', '.join(nodes)}); cancel "
                "them with scancel, or continue in another allocation"
            )

    def _held_elsewhere(self, step: JobStep) -> bool:
        """Whether a step of another job may still run; Slurm may list an ended one for ever."""
        try:
            allocation = Allocation(step.job)
            nodes = allocation.hostnames(step.nodes)
        except AllocationGoneError:
            return False
        except SlurmError:
            return True
        return bool(NodeProof(self.site, allocation).unproven(nodes, {step.name}))

    def down_nodes(self) -> set[str]:
        return self.allocation.known_down_nodes(patience_s=0.0) | self._unproven

    def allocation_state(self) -> AllocationState:
        return self.allocation.state()

    def time_left_s(self) -> float | None:
        return self.allocation.time_left_s()

    def close(self) -> None:
        """End the steps that wait for a trial."""
        self._kept.close()
