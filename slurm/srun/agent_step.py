"""A step with an agent in each of its tasks, which starts trials there, one at a time.

It may be kept from trial to trial: its ranks are then forked from processes that have the trainer's
imports done. So only the first trial waits for a step, and for Python and torch on all its nodes;
yet each has processes of its own, which no other can disturb.

The agents' connection is srun's standard input and output. Its standard error is Slurm's alone.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from slurm.channel import Channel, pump
from slurm.forked_rank import parsed_python, read_at_start
from slurm.log_file import LAST_TRIES_S
from slurm.outcome.rank_ends import FAILURE_GRACE_S, FailureGrace
from slurm.srun.ending import Step
from slurm.trial import Lease, TrialSpec

_MOST_SAID = 1 << 16  # bytes kept of what Slurm says


def can_be_forked(spec: TrialSpec) -> bool:
    """Whether the trial's ranks can be forked in a step that is kept."""
    return spec.kept is not None and parsed_python(spec.argv) is not None


class AgentStep:
    """An srun whose tasks are agents.

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
        self._grace = FailureGrace()
        self._said = b""
        srun = subprocess.Popen(
            argv,
            cwd=step_spec.directory,  # its ranks' own folder may be in a container alone
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
        )
        assert srun.stdout is not None and srun.stderr is not None
        self.step = Step(step_spec.name, lease, frozenset({step_spec.name}), srun)
        ranks = range(step_spec.world_size)
        self.channel = Channel(ranks, len(ranks), self._order)
        sources = {srun.stdout.fileno(): self.channel.feed, srun.stderr.fileno(): self._hear}
        self._pump = threading.Thread(target=pump, args=(sources,), name="agents", daemon=True)
        self._pump.start()

    @property
    def alive(self) -> bool:
        return self.step.srun.poll() is None

    @property
    def usable(self) -> bool:
        """Whether it can be given a trial."""
        return self.alive and not self.channel.void

    def start(self, spec: TrialSpec, env: Mapping[str, str]) -> None:
        """Start a trial; its folder is ready, and no other trial runs.

        Its ranks get the variables ``env``, which the step does not have.
        """
        # Where ranks are forked from, those that find no memory still write the trial's result.
        self._grace = FailureGrace(FAILURE_GRACE_S if self.requirements else 0.0)
        self.channel.begin(spec, self._said)
        self._order(
            {
                "trial": spec.name,
                "argv": spec.argv,
                "cwd": str(spec.started_in),
                "clear": False,
                "env": dict(env),
                "ranks": [{}],  # srun has given each task its own variables
                "memory_bytes": None,
                "forked": self.requirements is not None,
                "modules": spec.kept.modules if spec.kept else (),
            }
        )

    def over(self) -> bool:
        """Whether the trial is over: nothing of it is left, or nobody could say so any more.

        Ranks that outlive one that has failed for too long are killed.
        """
        channel = self.channel
        if channel.over or not self.alive:
            return True
        if self._grace.is_over(channel.failed):
            self._order({"end": signal.SIGKILL})
        channel.check_silence()
        return False

    def terminate(self, grace_s: float) -> None:
        """Ask the trial's ranks to end, and wait for that at most so long."""
        self._order({"end": signal.SIGTERM})
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and self.alive and not self.channel.over:
            time.sleep(0.02)

    def let_go(self, timeout_s: float) -> None:
        """End the orders, and wait at most so long for srun's end."""
        assert self.step.srun.stdin is not None
        with contextlib.suppress(OSError):
            self.step.srun.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.step.srun.wait(timeout_s)

    def finish(self) -> str:
        """Close the trial's logs; returns why lines are missing there, "" if none are.

        If srun has ended, all its output is in them.
        """
        self.listen()
        self._said = b""
        return self.channel.finish()

    def listen(self) -> None:
        """Take all that was said, if srun has ended."""
        if not self.alive:
            self._pump.join(LAST_TRIES_S)

    def said(self) -> str:
        """Slurm's words since the last trial."""
        return self._said.decode(errors="replace")

    def _hear(self, data: bytes) -> None:
        self._said = (self._said + data)[-_MOST_SAID:]
        self.channel.note(data)

    def _order(self, order: Mapping[str, object]) -> None:
        srun = self.step.srun
        assert srun.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # srun has ended, which is seen elsewhere
            srun.stdin.write(json.dumps(order).encode() + b"\n")
            srun.stdin.flush()


def requirements(spec: TrialSpec, lease: Lease) -> object:
    """Properties that two trials must share for one step to serve both; None: it serves one."""
    if not can_be_forked(spec):
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
