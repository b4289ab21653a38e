"""A step that is kept from trial to trial: its ranks have the trainer's imports done.

Each task is a :class:`slurm.fork_server.TaskShepherd`, which forks a rank for every trial. So only
the first trial waits for a step, and for Python and torch on all its nodes; yet each has processes
of its own, which no other can disturb.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm.forked_rank import parsed_python, read_at_start
from slurm.log_file import LAST_TRIES_S, LogFile
from slurm.outcome.rank_ends import FailureGrace, first_failure
from slurm.srun.ending import Step
from slurm.srun.rank_words import RankWords
from slurm.trial import STDERR_NAME, STDOUT_NAME, Lease, TrialSpec

_POLL_S = 0.2
_MOST_UNCLAIMED = 1 << 16  # bytes kept of what srun says while no trial runs


def can_be_forked(spec: TrialSpec) -> bool:
    """Whether a kept step can fork the trial's ranks."""
    return spec.kept is not None and parsed_python(spec.argv) is not None


@dataclass
class _Output:
    """One of srun's two streams."""

    words: RankWords = field(default_factory=RankWords)
    log: LogFile | None = None  # the running trial's
    codes: dict[int, int] = field(default_factory=dict)  # exit codes by rank, in order of end


class KeptStep:
    """An srun whose tasks wait for trials, one at a time.

    ``step_spec`` is the step as a trial that never ends; it can serve trials with the same
    :func:`requirements`.
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
        self._world_size = step_spec.world_size
        self._lock = threading.Lock()
        self._trial: TrialSpec | None = None
        self._grace = FailureGrace()
        self._unclaimed = b""
        self._problem = ""
        srun = subprocess.Popen(
            argv,
            cwd=step_spec.started_in,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
        )
        assert srun.stdout is not None and srun.stderr is not None
        self.step = Step(step_spec.name, lease, frozenset({step_spec.name}), srun)
        self._streams = {srun.stdout.fileno(): _Output(), srun.stderr.fileno(): _Output()}
        self._out, self._err = self._streams.values()
        self._pump = threading.Thread(target=self._read, name="kept step", daemon=True)
        self._pump.start()

    @property
    def alive(self) -> bool:
        return self.step.srun.poll() is None

    @property
    def codes(self) -> dict[int, int]:
        """Exit codes of the trial's ranks, in the order of their ends; a signal is negative."""
        with self._lock:
            return dict(self._out.codes)

    @property
    def exit_code(self) -> int | None:
        """The first failed rank's exit code; 0 if all succeeded; None while that is not known."""
        return first_failure(self.codes) or (0 if self.all_ended else None)

    @property
    def all_ended(self) -> bool:
        """Whether nothing of the trial is left, and all its output is in the logs."""
        return all(len(output.codes) == self._world_size for output in (self._out, self._err))

    def start(self, spec: TrialSpec, env: Mapping[str, str]) -> None:
        """Start a trial; its folder is ready, and no other trial runs.

        Its ranks get the variables ``env``, which the step does not have.
        """
        with self._lock:
            self._trial, self._grace, self._problem = spec, FailureGrace(), ""
            for output, name in ((self._out, STDOUT_NAME), (self._err, STDERR_NAME)):
                output.log, output.codes = LogFile(spec.directory / name), {}
            assert self._err.log is not None
            self._err.log.write(self._unclaimed)
            self._unclaimed = b""
        self._order(
            {
                "trial": spec.name,
                "argv": spec.argv,
                "cwd": str(spec.started_in),
                "clear": False,
                "env": dict(env),
                "ranks": [{}],  # srun has given each task its own variables
                "memory_bytes": None,
                "forked": True,
            }
        )

    def over(self) -> bool:
        """Whether the trial is over: nothing of it is left, or srun has ended. Does not block.

        Ranks that outlive one that has failed for too long are killed.
        """
        if self.all_ended or not self.alive:
            return True
        if self._grace.is_over(self.codes):
            self._order({"end": signal.SIGKILL})
        return False

    def terminate(self, grace_s: float) -> None:
        """Ask the trial's ranks to end, and wait for that at most so long."""
        self._order({"end": signal.SIGTERM})
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and self.alive and not self.all_ended:
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
        if not self.alive:
            self._pump.join(LAST_TRIES_S)
        with self._lock:
            self._trial = None
            for output in (self._out, self._err):
                log, output.log = output.log, None
                if log is not None:
                    log.close(LAST_TRIES_S)
                    self._problem = self._problem or log.problem
        return self._problem

    def said(self) -> str:
        """Standard error of srun since the last trial."""
        return self._unclaimed.decode(errors="replace")

    def _order(self, order: Mapping[str, object]) -> None:
        srun = self.step.srun
        assert srun.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # srun has ended, which is seen elsewhere
            srun.stdin.write(json.dumps(order).encode() + b"\n")
            srun.stdin.flush()

    def _read(self) -> None:
        """Sort the output of srun until all who could write to it are gone."""
        left = dict(self._streams)
        while left:
            ready, _, _ = select.select(list(left), [], [], _POLL_S)
            for source in ready:
                data = os.read(source, 1 << 16)
                with self._lock:
                    self._take(left[source], data)
                if not data:
                    del left[source]

    def _take(self, output: _Output, data: bytes) -> None:
        text, ended = output.words.feed(data)
        if output.log is not None:
            output.log.write(text)
        elif output is self._err:
            self._unclaimed = (self._unclaimed + text)[-_MOST_UNCLAIMED:]
        for end in ended:
            if self._trial is not None and end.trial == self._trial.name:
                output.codes[end.rank] = end.code


def requirements(spec: TrialSpec, lease: Lease) -> object:
    """Properties that two trials must share for one step to serve both."""
    assert spec.kept is not None
    return (
        lease.nodes,
        spec.ranks_per_node,
        spec.cpus_per_rank,
        spec.memory_bytes_per_rank,
        spec.argv[0],
        spec.kept,
        read_at_start(spec.env),
    )
