"""How a step is ended, and known to be gone."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from slurm.launcher import AllocationState
from slurm.srun.allocation import Allocation, JobStep
from slurm.srun.proof import NodeProof
from slurm.srun.shell import SlurmError
from slurm.srun.texts import GAVE_UP
from slurm.trial import Lease

_LOOSE_S = 5.0  # for an srun to see that its ranks are gone
_REPEAT_KILL_S = 5.0
_FIRST_POLL_S, _LAST_POLL_S = 0.1, 2.0


@dataclass(frozen=True)
class Step:
    """A step that an srun of ours was started for, whether or not it has got one."""

    name: str  # its job name, which no other step has
    lease: Lease  # its nodes
    marks: frozenset[str]  # what its processes have in TRIAL_VARIABLE
    srun: subprocess.Popen[bytes]


class StepEnder:
    """Ends steps; for several threads.

    Args:
        allocation: whose steps they are.
        proof: how nodes are asked where Slurm's list proves nothing.
        gone_deadline_s: how long a step may stay in Slurm's list before its nodes are asked.
        patience_s: how long a controller that does not answer is waited for instead.
    """

    def __init__(
        self, allocation: Allocation, proof: NodeProof, gone_deadline_s: float, patience_s: float
    ) -> None:
        self._allocation = allocation
        self._proof = proof
        self._gone_deadline_s = gone_deadline_s
        self._patience_s = patience_s

    def end(
        self, step: Step, grace_s: float, said: Callable[[], str], doubtful: bool = False
    ) -> tuple[tuple[str, ...], str]:
        """Climb the kill ladder as far as needed.

        SIGTERM to srun would kill its tasks without grace, SIGKILL to its process group would
        leave them running: the step is signalled through Slurm.

        Args:
            step: to end.
            grace_s: between the polite and the final signal; 0: no polite one.
            said: what its srun wrote to standard error.
            doubtful: whether Slurm's word that it is gone proves nothing.

        Returns:
            The nodes that are not proven free; and if all are, but Slurm lists the step still, that
            it does: its ranks may have waited for a step daemon that somebody had killed.
        """
        srun, nodes = step.srun, step.lease.nodes

        def own() -> list[JobStep]:
            return [s for s in self._allocation.steps() if s.name == step.name]

        def end_waiting() -> None:
            nonlocal doubtful
            doubtful = True  # it waits for a step that it was never given, or that is forgotten
            if self._proof.needed():
                # It ends when its ranks do. Told to end, it would cancel whoever has its step's id.
                self._proof.unproven(nodes, step.marks)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    srun.wait(_LOOSE_S)
            srun.terminate()

        if grace_s and srun.poll() is None:
            with contextlib.suppress(SlurmError, subprocess.TimeoutExpired):
                for one in own():
                    self._allocation.cancel(one, "TERM")
                    srun.wait(grace_s)
        listed = self.until_gone(own, lambda: srun.poll() is None, end_waiting)
        if srun.poll() is None:
            srun.kill()  # it alone, not its group: its shepherd still ends what it can
        srun.wait()
        # Having given up its wait for the step's end, srun says so: the step may not have ended.
        if listed != [] or doubtful or GAVE_UP.search(said()) or self._proof.needed():
            stuck = self._proof.unproven(nodes, step.marks)
            if listed and not stuck:
                return (), f"Slurm could not end its step {listed[0].id}"
            return stuck, ""
        return (), ""

    def until_gone(
        self,
        find: Callable[[], list[JobStep]],
        waiting: Callable[[], bool],
        end_waiting: Callable[[], None],
    ) -> list[JobStep] | None:
        """Cancel steps again and again until Slurm knows none and no srun is left.

        Args:
            find: steps that have to go.
            waiting: whether an srun is left, which may yet get its step.
            end_waiting: ends it.

        Returns:
            Steps that were not gone by the deadline; None if Slurm did not say.
        """
        began = time.monotonic()
        deadline = began + self._gone_deadline_s
        next_kill, poll_s = 0.0, _FIRST_POLL_S
        while True:
            steps: list[JobStep] | None = None  # Slurm does not answer: nothing is proven
            with contextlib.suppress(SlurmError):
                steps = self._allocation.on_live_nodes(find())
            if steps == [] and not waiting():
                return []
            now = time.monotonic()
            if steps is None and now < began + self._patience_s:
                deadline = now + self._gone_deadline_s
            if now > deadline or self._is_over(steps):
                return steps
            if now >= next_kill:
                for step in steps or []:
                    self._allocation.cancel(step)
                if not steps and waiting():
                    end_waiting()
                next_kill = now + _REPEAT_KILL_S
            time.sleep(poll_s)
            poll_s = min(_LAST_POLL_S, 2 * poll_s)

    def _is_over(self, steps: list[JobStep] | None) -> bool:
        """Whether Slurm does not tell of steps because their job is gone, and they with it."""
        return steps is None and self._allocation.state() is AllocationState.GONE
