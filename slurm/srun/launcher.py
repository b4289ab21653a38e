"""The srun launcher: one job step per trial, and proof that it is gone."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from slurm import processes
from slurm.files import write_private
from slurm.launcher import AllocationState, Launcher, LauncherError, LauncherOptions
from slurm.outcome.classify import Outcome, classify
from slurm.outcome.evidence import clear_attempt, gather
from slurm.outcome.kinds import Kind
from slurm.outcome.step_log import StopRule
from slurm.outcome.watch import STDERR_NAME, STDOUT_NAME, Termination, ended_by_others, watch
from slurm.srun.allocation import Allocation, JobStep
from slurm.srun.command import srun_argv, srun_environment
from slurm.srun.shell import SlurmError
from slurm.srun.site import Site, load_site
from slurm.srun.texts import SRUN_TEXTS
from slurm.trial import TRIAL_VARIABLE, Lease, TrialSpec

# Slurm itself may take SlurmdTimeout (often 300 s) to give up a dead node and end its steps.
GONE_DEADLINE_S = 600.0
_REPEAT_KILL_S = 5.0
_PATIENCE_S = 60.0  # with a controller that must say whether a trial's nodes are down
_FIRST_POLL_S, _LAST_POLL_S = 0.1, 2.0


class LaunchPacing:
    """Keeps launches apart, for the controller's sake; for several threads.

    Args:
        interval_s: least time between two.
        monotonic: the clock, in seconds.
    """

    def __init__(self, interval_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._monotonic = interval_s, monotonic
        self._turn = threading.Lock()
        self._last = float("-inf")

    def wait(self, stop: threading.Event) -> bool:
        """Wait for one's turn; False if stopped meanwhile."""
        with self._turn:
            if stop.wait(max(0.0, self._last + self._interval_s - self._monotonic())):
                return False
            self._last = self._monotonic()
        return True


class SrunLauncher(Launcher):
    """Starts trials as steps of the surrounding allocation.

    Args:
        site: how srun is spoken to here.
        allocation: the job whose nodes are used; default the one this process is in.
        gone_deadline_s: how long a step may take to disappear before its nodes are given up.
    """

    name = "srun"

    def __init__(
        self,
        site: Site,
        allocation: Allocation | None = None,
        gone_deadline_s: float = GONE_DEADLINE_S,
    ) -> None:
        self.site = site
        self.allocation = allocation or Allocation.current()
        self.max_concurrent = site.max_concurrent_steps
        self._gone_deadline_s = gone_deadline_s
        self._pacing = LaunchPacing(site.launch_interval_s)

    @classmethod
    def from_options(cls, options: LauncherOptions) -> SrunLauncher:
        return cls(load_site(options.site))

    def nodes(self) -> Sequence[str]:
        return self.allocation.nodes

    def gpus_per_node(self) -> int | None:
        granted = os.environ.get("SLURM_GPUS_ON_NODE", "")  # set only where GPUs were asked for
        gpus = int(granted) if granted.isdecimal() else self.allocation.gpus_per_node()
        return gpus or None  # Slurm need not know of those that there are

    def command(self, spec: TrialSpec, lease: Lease) -> list[str]:
        return srun_argv(spec, lease, self.site, self.allocation.cpus_per_node)

    def run(
        self,
        spec: TrialSpec,
        lease: Lease,
        stop: threading.Event,
        stop_rule: StopRule | None = None,
    ) -> Outcome:
        argv = self.command(spec, lease)
        environ = srun_environment(
            spec,
            lease,
            self.site,
            self.allocation.address(lease.nodes[0]),
            os.environ,
            self.allocation.cpus_per_node,
        ) | {"SLURM_JOB_ID": self.allocation.job}
        clear_attempt(spec.directory)
        write_private(spec.directory / "command.txt", shlex.join(argv) + "\n")
        if not self._pacing.wait(stop):
            return Outcome(Kind.CANCELLED, message="stopped before it was launched")
        with (
            (spec.directory / STDOUT_NAME).open("wb") as stdout,
            (spec.directory / STDERR_NAME).open("wb") as stderr,
        ):
            # A session of its own: Ctrl-C in the terminal is the driver's to handle.
            child = subprocess.Popen(
                argv,
                cwd=spec.directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            watched = watch(spec, lambda: child.poll() is not None, stop, stop_rule)
        except BaseException:
            self._end(spec.name, child, spec.grace_s)  # whatever went wrong, nothing is left
            raise
        grace_s = 0.0 if watched.termination is Termination.EXITED else spec.grace_s
        severed = ended_by_others(child, watched, "srun")
        stuck = () if self._end(spec.name, child, grace_s) else lease.nodes
        # Whatever srun's exit code: it was seen to be 0 after a node had died.
        down: set[str] = set()
        with contextlib.suppress(SlurmError):
            down = self.allocation.down_nodes(_PATIENCE_S)
        evidence = gather(
            spec,
            lease,
            watched,
            child.returncode,
            down_nodes=down,
            stuck_nodes=stuck,
            severed=severed,
            texts=SRUN_TEXTS,
        )
        return classify(evidence)

    def settle(self, names: Iterable[str]) -> None:
        """End what a killed driver left: sruns that still wait for their step, and steps.

        Raises:
            LauncherError: if a step would not go; its nodes are not safe to use.
        """
        wanted = set(names)
        if not wanted:
            return
        left_behind = processes.with_environ(lambda env: env.get(TRIAL_VARIABLE) in wanted)
        sruns = {pid for pid in left_behind if processes.name(pid) == "srun"}

        def left() -> list[JobStep]:
            return [s for s in self.allocation.steps_of_user() if s.name in wanted]

        def waiting() -> bool:
            return any(processes.is_running(pid) for pid in sruns)

        def end_waiting() -> None:
            processes.send(sruns, signal.SIGTERM)

        if not self._until_gone(left, waiting, end_waiting):
            steps = ", ".join(f"{s.id} on {s.nodes}" for s in left())
            raise LauncherError(
                f"steps of an earlier driver would not end ({steps}); cancel them with scancel, "
                "or continue in another allocation"
            )

    def down_nodes(self) -> set[str]:
        with contextlib.suppress(SlurmError):
            return self.allocation.down_nodes()
        return set()

    def allocation_state(self) -> AllocationState:
        return self.allocation.state()

    def time_left_s(self) -> float | None:
        return self.allocation.time_left_s()

    def _end(self, name: str, child: subprocess.Popen[bytes], grace_s: float) -> bool:
        """Climb the kill ladder as far as needed; whether the step is proven gone.

        SIGTERM to srun would kill its tasks without grace, SIGKILL to its process group would
        leave them running: the step is signalled through Slurm.
        """

        def own() -> list[JobStep]:
            return [s for s in self.allocation.steps() if s.name == name]

        if grace_s and child.poll() is None:
            with contextlib.suppress(SlurmError, subprocess.TimeoutExpired):
                for step in own():
                    self.allocation.cancel(step, "TERM")
                    child.wait(grace_s)
        gone = self._until_gone(own, lambda: child.poll() is None, child.terminate)
        if child.poll() is None:
            child.kill()  # it alone, not its group: its shepherd still ends what it can
        child.wait()
        return gone

    def _until_gone(
        self,
        find: Callable[[], list[JobStep]],
        waiting: Callable[[], bool],
        end_waiting: Callable[[], None],
    ) -> bool:
        """Cancel steps again and again until Slurm knows none and no srun is left.

        Args:
            find: steps that have to go.
            waiting: whether an srun is left, which may yet get its step.
            end_waiting: ends it.

        Returns:
            False if they were not gone by the deadline.
        """
        deadline = time.monotonic() + self._gone_deadline_s
        next_kill, poll_s = 0.0, _FIRST_POLL_S
        while True:
            steps: list[JobStep] | None = None  # Slurm does not answer: nothing is proven
            with contextlib.suppress(SlurmError):
                steps = self.allocation.on_live_nodes(find())
            if steps == [] and not waiting():
                return True
            now = time.monotonic()
            if now > deadline:
                return False
            if now >= next_kill:
                for step in steps or []:
                    self.allocation.cancel(step)
                if not steps and waiting():
                    end_waiting()
                next_kill = now + _REPEAT_KILL_S
            time.sleep(poll_s)
            poll_s = min(_LAST_POLL_S, 2 * poll_s)
