"""The srun launcher: a job step for each trial, or for several, and proof that it is gone."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from foundation.container import Container
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
from slurm.outcome.evidence import Evidence, clear_attempt
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.outcome.texts import LauncherTexts
from slurm.outcome.watch import Termination, Watched
from slurm.srun.allocation import Allocation, JobStep
from slurm.srun.command import contained, srun_argv, srun_environment, started_container
from slurm.srun.containers import FILE_NAME, check_image
from slurm.srun.ending import StepEnder
from slurm.srun.proof import NodeProof
from slurm.srun.shell import PATIENCE_S, SlurmError
from slurm.srun.site import Site
from slurm.srun.steps import AgentStep, IdleSteps, LaunchPacing, requirements, spec_of_step
from slurm.srun.texts import OVER, SRUN_TEXTS
from slurm.trial import Lease, TrialSpec, carries, kept_mark, rendezvous_environment

GONE_DEADLINE_S = 60.0
_LET_GO_S = 10.0  # for a step to end by itself when its agents have no more work


class SrunLauncher(Launcher):
    """Starts trials in steps of an allocation, by default the one that this process is in.

    A step is kept for the next trial only if the trial's ranks were forked, all are known to have
    ended, and the first failure, if any, was no signal. Otherwise the step is ended.

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
        self._unproven: set[str] = set()  # nodes that may still have an earlier driver's processes
        self._ender = StepEnder(self.allocation, self._proof, gone_deadline_s, patience_s)
        self._pacing = LaunchPacing(site.launch_interval_s)
        self._idle = IdleSteps()
        self._running: set[str] = set()  # names of trials

    @classmethod
    def from_options(cls, options: LauncherOptions) -> SrunLauncher:
        site = Site.load(options.site)
        allocation = Allocation.current(exclude=options.exclude)
        allocation.refuse_mixed_nodes()
        return cls(site, allocation)

    def nodes(self) -> Sequence[str]:
        return self.allocation.nodes

    def gpus_per_node(self) -> int | None:
        granted = os.environ.get("SLURM_GPUS_ON_NODE", "")  # set only where GPUs were asked for
        gpus = int(granted) if granted.isdecimal() else self.allocation.gpus_per_node()
        return gpus or None  # Slurm may not know of the nodes' GPUs

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        inside = contained(spec, self.site)
        return srun_argv(inside, lease, self.site, self.allocation.cpus_per_node)

    def check_container(self, container: Container) -> None:
        check_image(container, self.site.containers_for(container.image))

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        clear_attempt(spec.directory)
        spec = contained(spec, self.site)
        if spec.obstacle:
            return Outcome(Kind.LAUNCH_FAILURE, message=spec.obstacle)
        self._running.add(spec.name)
        try:
            agents = self._agents(spec, lease, stop)
            if agents is None:
                return Outcome(Kind.CANCELLED, message="stopped before it was launched")
            return classify(self._run_by(agents, spec, lease, stop, stop_rule))
        finally:
            self._running.discard(spec.name)

    def _agents(self, spec: TrialSpec, lease: Lease, stop: threading.Event) -> AgentStep | None:
        """An idle step that can serve the trial, else a new one; None if stopped meanwhile.

        Ends other idle steps on its nodes, and the oldest if there are too many.
        """
        wanted = requirements(spec, lease)
        fitting, others = self._idle.take(lease, wanted)
        most = self.site.max_concurrent_steps - len(self._running)
        self._end_idle([*others, *self._idle.take_oldest(most)], stop)
        if fitting is not None:
            return fitting
        return self._launch(spec, lease, wanted) if self._pacing.wait(stop) else None

    def _launch(self, spec: TrialSpec, lease: Lease, wanted: object) -> AgentStep:
        of_step = spec_of_step(spec) if wanted else spec
        cpus = self.allocation.cpus_per_node
        argv = srun_argv(replace(of_step, argv=()), lease, self.site, cpus)
        address = self.allocation.address(lease.nodes[0])
        environ = srun_environment(of_step, self.site, address, os.environ, cpus)
        environ["SLURM_JOB_ID"] = self.allocation.job
        if (line := started_container(of_step, self.site)) and line.file:
            write_private(spec.directory / FILE_NAME, line.file)
        return AgentStep(of_step, lease, argv, environ, wanted)

    def _run_by(
        self,
        agents: AgentStep,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None,
    ) -> Evidence:
        try:
            argv = srun_argv(spec, lease, self.site, self.allocation.cpus_per_node)
            name = agents.step.name
            note = f"# forked in the step {name}; alone it is\n" if agents.requirements else ""
            write_private(spec.directory / "command.txt", f"{note}{shlex.join(argv)}\n")
            address = self.allocation.address(lease.nodes[0])
            agents.start(spec, lease, {**spec.env, **rendezvous_environment(spec, address)})
            watched = agents.watch(stop, stop_rule)
            return self._conclude(agents, watched, stop)
        except BaseException:
            self._end(agents, spec, stop)  # after any error, too, nothing may be left running
            agents.finish()
            raise

    def _conclude(self, agents: AgentStep, watched: Watched, stop: threading.Event) -> Evidence:
        channel, severed = agents.channel, watched.severed
        no_program, _ = channel.no_program()
        ended = watched.termination in (Termination.EXITED, Termination.STOPPED_EARLY)
        killed = (channel.exit_code or 0) < 0 and watched.early_stop is None
        disturbed = killed or severed or no_program
        clean = ended and channel.all_gone and agents.alive and not disturbed
        stuck, undead, down = tuple[str, ...](), "", set[str]()
        if agents.requirements is None or not clean:
            # An srun that exits before any agent has started was refused its step.
            refused = not channel.greeted and (agents.program.poll() or 0) > 0
            stuck, undead = self._end(agents, agents.spec, stop, bool(severed) and not refused)
            down = self.allocation.known_down_nodes() if not clean else set()
        agents.finish()
        evidence = agents.evidence(
            replace(watched, severed=severed or undead),
            self._texts(agents),
            down_nodes=down,
            stuck_nodes=stuck,
        )
        self.allocation.over = self.allocation.over or bool(OVER.search(evidence.said))
        if agents.requirements is not None and clean:
            self._idle.give_back(agents)
        return evidence

    def _texts(self, agents: AgentStep) -> LauncherTexts:
        """Patterns of srun, and of a runtime that may have failed to start the container."""
        line = started_container(agents.spec, self.site)
        if line is None:
            return SRUN_TEXTS
        started = len(agents.channel.greeted) == agents.spec.world_size
        texts = line.runtime.texts(agents.channel.exit_code, started=started)
        return replace(SRUN_TEXTS, container=texts)

    def _end(
        self, agents: AgentStep, spec: TrialSpec, stop: threading.Event, doubtful: bool = False
    ) -> tuple[tuple[str, ...], str]:
        """End a trial and its step; see ``StepEnder.end``."""
        if agents.channel.all_gone:
            agents.let_go(_LET_GO_S)
        # A rank has the step's name in its environment; processes that it starts have the trial's.
        step = replace(agents.step, marks=agents.step.marks | {spec.name})
        answer = self._ender.end(step, agents.said, stop, doubtful)
        agents.listen()
        return answer

    def _end_idle(self, steps: Sequence[AgentStep], stop: threading.Event) -> None:
        for agents in steps:
            agents.let_go(0.0)  # tell all before waiting for any
        for agents in steps:
            agents.let_go(_LET_GO_S)
            self._ender.end(agents.step, agents.said, stop)
            agents.finish()

    def settle(self, names: Iterable[str]) -> None:
        """End the steps of a killed driver, and its sruns that still wait for theirs.

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
        elsewhere = [s for s in steps if s.job != self.allocation.listed_as]
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
        """Whether another job's step may still run; Slurm may list an ended one for ever."""
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
        now = threading.Event()
        now.set()
        self._end_idle(self._idle.take_oldest(0), now)
