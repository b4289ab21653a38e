"""The srun launcher: one job step per trial, and proof that it is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from foundation.container import Container
from slurm import processes
from slurm.launcher import (
    AllocationGoneError,
    AllocationState,
    Launcher,
    LauncherError,
    LauncherOptions,
)
from slurm.outcome.classify import Outcome
from slurm.outcome.step_log import StopRule
from slurm.srun.allocation import Allocation, JobStep
from slurm.srun.command import contained, srun_argv
from slurm.srun.containers import check_image
from slurm.srun.ending import StepEnder
from slurm.srun.launches import Launches, LaunchPacing
from slurm.srun.proof import NodeProof
from slurm.srun.shell import PATIENCE_S, SlurmError
from slurm.srun.site import Site
from slurm.trial import Lease, TrialSpec, carries, kept_mark

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
        pacing = LaunchPacing(site.launch_interval_s)
        self._ender = StepEnder(self.allocation, self._proof, gone_deadline_s, patience_s)
        self._launches = Launches(site, self.allocation, self._ender, pacing)
        self._running = Counter[str]()  # trials, by name

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
        return gpus or None  # Slurm need not know of the GPUs that there are

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
        self._running[spec.name] += 1
        try:
            most = self.site.max_concurrent_steps - self._running.total()
            return self._launches.run(spec, lease, stop, stop_rule, most)
        finally:
            self._running[spec.name] -= 1

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
        self._launches.close()
