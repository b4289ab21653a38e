"""Ending a step, and proving that it is gone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from slurm.launcher import AllocationState
from slurm.srun.allocation import Allocation, JobStep
from slurm.srun.proof import NodeProof
from slurm.srun.shell import SlurmError
from slurm.srun.texts import GAVE_UP, REFUSED
from slurm.trial import Lease

_SRUN_S = 5.0  # for an srun to notice that its ranks are gone
_REPEAT_KILL_S = 5.0
_HURRIED_S = 10.0  # how long a doubtful step may stay in Slurm's list before its nodes are asked
_FIRST_POLL_S, _LAST_POLL_S = 0.1, 2.0
_OTHERS = re.compile(r"[\d_+]+\.\d+ (?!meshtune-)")  # steps, but for the job's own ``batch``


@dataclass(frozen=True)
class Step:
    """An srun of ours, and the step that it has been granted or still waits for."""

    name: str  # its job name, unique
    lease: Lease
    marks: frozenset[str]  # values of TRIAL_VARIABLE in its processes
    srun: subprocess.Popen[bytes]


@dataclass(frozen=True)
class StepEnder:
    """Ends steps; thread-safe."""

    allocation: Allocation
    proof: NodeProof
    gone_deadline_s: float  # how long a step may stay in Slurm's list before its nodes are asked
    patience_s: float  # how long to wait for a controller that does not answer before that counts

    def end(
        self, step: Step, said: Callable[[], str], stop: threading.Event, doubtful: bool = False
    ) -> tuple[tuple[str, ...], str]:
        """Cancel a step until it is gone.

        Slurm has to end it: SIGKILL to srun's process group would leave its tasks running. ``said``
        returns srun's standard error. If ``doubtful``, Slurm's list proves nothing, and srun may
        have been stopped. Then, and once ``stop`` is set, nodes are asked soon; if they are free,
        it no longer waits for Slurm's list.

        Returns the nodes not proven free; and, if all are free but Slurm still lists the step, a
        message on that: somebody may have killed the step daemon that its ranks waited for.
        """
        srun, nodes = step.srun, step.lease.nodes
        nested: set[str] = set()  # nodes with steps that the trial itself may have started by srun
        own = partial(self._own, step, nested)

        def end_waiting() -> None:
            nonlocal doubtful
            doubtful = True  # srun waits for a step that was never granted or has been forgotten
            if self.proof.needed():
                # srun exits when its ranks end. After a signal it would cancel another step that
                # has been given the same id.
                self.proof.unproven(nodes, step.marks)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    srun.wait(_SRUN_S)
            srun.terminate()

        def free() -> bool:
            if not (doubtful or stop.is_set()):
                return False
            return not self.proof.unproven(nodes, step.marks, once=True)

        if doubtful:
            srun.kill()  # not its group: its second process still ends tasks that it reaches
        listed = self.until_gone(own, lambda: srun.poll() is None, end_waiting, free)
        if srun.poll() is None:
            srun.kill()
        srun.wait()
        with contextlib.suppress(OSError):
            os.killpg(srun.pid, signal.SIGKILL)  # its second process may have been stopped
        if listed == [] and not doubtful and srun.returncode > 0 and REFUSED.search(said()):
            return (), ""  # there never was a step
        # If srun reports that it gave up waiting for the step's end, the step may still run.
        doubtful = doubtful or bool(nested or GAVE_UP.search(said()))
        if listed == [] and not (doubtful or self.proof.needed()):
            return (), ""
        stuck = self.proof.unproven(nodes, step.marks)
        undead = f"Slurm could not end its step {listed[0].id}" if listed and not stuck else ""
        return stuck, undead

    def _own(self, step: Step, nested: set[str]) -> list[JobStep]:
        """The step as Slurm lists it; adds its nodes that have other steps to ``nested``."""
        steps = self.allocation.steps()
        others = [s.nodes for s in steps if _OTHERS.match(f"{s.id} {s.name}")]
        nested.update(*(set(step.lease.nodes) & {*self.allocation.hostnames(o)} for o in others))
        return [s for s in steps if s.name == step.name]

    def until_gone(
        self,
        find: Callable[[], list[JobStep]],
        waiting: Callable[[], bool],
        end_waiting: Callable[[], None],
        free: Callable[[], bool] = lambda: False,
    ) -> list[JobStep] | None:
        """Cancel the steps found again and again until Slurm knows none and no srun is left.

        An srun that is ``waiting`` may still be granted its step. If none is, the listed steps may
        have left the nodes ``free``, which ends the wait, too.

        Returns the steps still listed at the end; None if Slurm did not answer.
        """
        began = time.monotonic()
        deadline = began + self.gone_deadline_s
        next_kill, poll_s = 0.0, _FIRST_POLL_S
        while True:
            steps: list[JobStep] | None = None  # Slurm does not answer: nothing is proven
            with contextlib.suppress(SlurmError):
                steps = self.allocation.on_live_nodes(find())
            if steps == [] and not waiting():
                return []
            now = time.monotonic()
            if steps is None and now < began + self.patience_s:
                deadline = now + self.gone_deadline_s
            gone = steps is None and self.allocation.state() is AllocationState.GONE
            if now > deadline or gone:  # a job's steps end with it
                return steps
            if now >= next_kill:
                if steps and now > began + _HURRIED_S and not waiting() and free():
                    return steps
                for step in steps or []:
                    self.allocation.cancel(step)
                if not steps and waiting():
                    end_waiting()
                next_kill = now + _REPEAT_KILL_S
            time.sleep(poll_s)
            poll_s = min(_LAST_POLL_S, 2 * poll_s)
