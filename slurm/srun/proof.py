"""The proof that a step is gone where Slurm's list of steps proves nothing.

The list is the controller's memory. A controller that was killed restarts from its last save (Slurm
22.05 saves at most every five seconds) and has forgotten the steps begun since. Nobody can cancel
them: their ranks run on beside the next trial. It also reuses their step ids: ending one step then
removes the other, still running, from the list, and a signalled srun cancels the other step.

So in doubt, a short further step asks the nodes themselves: it ends every process with the trial's
name in its environment, and reports those that remain. Not after every trial: a step costs the
controller's time, and 1.3 s on two nodes or 2.1 s on eight, all on one busy two-core machine.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foundation.python import module_argv
from slurm.launcher import AllocationState, LauncherError
from slurm.srun.allocation import Allocation
from slurm.srun.shell import PATIENCE_S, SlurmError, scrubbed
from slurm.srun.site import Site
from slurm.sweep.node import GONE_S
from slurm.sweep.sweeper import Answers, Run, answers, run_program, sweep

DEADLINE_S = 120.0  # for the nodes' answers
_ALONE_S = 20.0  # after so long each node is asked alone
_ANSWER_S = 30.0  # for a sweep besides GONE_S
_STEP_CREATION_S = 10
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 8.0
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(eq=False)
class NodeProof:
    """Ends trials on the allocation's nodes, and proves it; thread-safe.

    Nodes have to answer within ``deadline_s``; the wait for a controller that does not answer, at
    most ``patience_s``, comes on top.
    """

    site: Site
    allocation: Allocation
    deadline_s: float = DEADLINE_S
    patience_s: float = PATIENCE_S
    run: Run = run_program

    def __post_init__(self) -> None:
        self._controllers: set[str] = set()  # start times of those that have answered
        self.needed()  # note the present one: a backup may have been started before the job, too

    def needed(self) -> bool:
        """Whether the controller may have forgotten a step of this job.

        It may if it was started after the job, or replaced. This stays true, as step ids may then
        have been given twice.
        """
        try:
            booted, began = self.allocation.controller_start(), self.allocation.job_start()
        except SlurmError:
            return True
        self._controllers.add(booted)
        known = _TIME.fullmatch(booted) and _TIME.fullmatch(began)
        return not known or booted >= began or len(self._controllers) > 1

    def unproven(
        self, nodes: Sequence[str], names: Collection[str], once: bool = False
    ) -> tuple[str, ...]:
        """End these trials on these nodes until time is up, or try ``once``; return the nodes not
        proven free.

        Down nodes are not asked: nothing runs there, and they leave the pool anyway. If the
        allocation is gone, no node is asked, as no further trial starts.
        """
        began = answered = time.monotonic()
        deadline_s, patience_s = (0.0, 0.0) if once else (self.deadline_s, self.patience_s)
        pause_s = _FIRST_PAUSE_S
        left = self._alive(nodes)
        while left:
            alone = time.monotonic() - answered > _ALONE_S
            swept = sweep(self._ask, left, names, one_by_one=alone)
            left = [node for node in left if node in swept.left or node in swept.silent]
            if not swept.silent:
                break
            state, now = self.allocation.state(), time.monotonic()
            if state is AllocationState.GONE:
                return ()
            if state is AllocationState.SILENT and now < began + patience_s:
                answered = now
            if now + pause_s > answered + deadline_s:
                break
            time.sleep(pause_s)  # for some seconds after its start the controller creates no steps
            pause_s = min(_LAST_PAUSE_S, 2 * pause_s)
            left = self._alive(left)
        return tuple(left)

    def _alive(self, nodes: Sequence[str]) -> list[str]:
        down = self.allocation.known_down_nodes(patience_s=0.0)
        return [node for node in nodes if node not in down]

    def _ask(self, nodes: Sequence[str], names: Collection[str]) -> tuple[Answers, str]:
        environ = scrubbed(os.environ) | self.site.env | {"SLURM_JOB_ID": self.allocation.job}
        try:
            said = self.run(sweep_argv(nodes, names), environ, _ANSWER_S + GONE_S)
        except LauncherError as error:
            said = str(error)
        return {node: pids for node, pids in answers(said).items() if node in nodes}, said


def sweep_argv(nodes: Sequence[str], names: Collection[str]) -> list[str]:
    """The srun line that ends the remaining processes of these trials, one task a node; pure."""
    return [
        "srun",
        f"-N{len(nodes)}",
        f"-n{len(nodes)}",
        "-c1",
        f"--nodelist={','.join(nodes)}",
        "--ntasks-per-node=1",
        "--mem=0",
        "--overlap",  # the step that it looks for may still hold the node
        "--time=1",
        f"--immediate={_STEP_CREATION_S}",
        "--job-name=meshtune-sweep",
        "--export=ALL",
        # Only processes of a step: an srun that waits on the driver's node belongs to the driver.
        *module_argv("slurm.sweep.node", "SLURMD_NODENAME", "SLURM_PROCID", *sorted(names)),
    ]
