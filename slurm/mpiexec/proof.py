"""The proof that nothing of a trial is left on its hosts, and that a host can be reached at all.

A second, short mpiexec starts one process a host, in the way in which trials get there. It ends
what carries the trial's name in its environment and reports. What Open MPI says about its own end
proves nothing: ranks on the driver's host outlive an mpiexec that is killed, and ranks elsewhere a
daemon that is killed (measured: 4.1.4, 5.0.11).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from slurm.launcher import LauncherError
from slurm.mpiexec.command import scrubbed, sweep_argv
from slurm.mpiexec.dialects import Dialect
from slurm.mpiexec.sweep import GONE_S, WORD

ANSWER_S = 30.0  # for a sweep beside GONE_S; the first ssh to a busy host takes seconds
_AT_ONCE = 16  # hosts that are asked one by one; sshd turns away more
_SWEPT = re.compile(rf"(?m){WORD} (\d+) ([\d,]*)$")
Run = Callable[[Sequence[str], Mapping[str, str], float], str]


@dataclass(frozen=True)
class Swept:
    """What sweeping some hosts has shown."""

    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # host -> would not die
    silent: tuple[str, ...] = ()  # hosts that did not answer
    said: str = ""  # by mpiexec about them


class Sweeper:
    """Ends trials on hosts for sure.

    Args:
        program: mpiexec's name or path.
        dialect: its dialect.
        environ: the driver's.
        answer_s: how long hosts may take to answer.
        run: runs a command; :func:`run_mpiexec` unless a test replaces it.
    """

    def __init__(
        self,
        program: str,
        dialect: Dialect,
        environ: Mapping[str, str],
        answer_s: float = ANSWER_S,
        run: Run | None = None,
    ) -> None:
        self._program = program
        self._dialect = dialect
        self._environ = scrubbed(environ)
        self._answer_s = answer_s
        self._run = run or run_mpiexec

    def sweep(self, hosts: Sequence[str], names: Collection[str]) -> Swept:
        """End these trials on these hosts; returns when they are gone, or would not go.

        All hosts are swept at once. One that is down makes all of that fail, so those that did not
        answer are then asked one by one.

        Args:
            hosts: to sweep.
            names: of trials; none: only see which hosts answer.
        """
        left, said = self._ask(hosts, names)
        silent = [host for host in hosts if host not in left]
        if silent and len(hosts) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                for answer, words in pool.map(lambda host: self._ask([host], names), silent):
                    left |= answer
                    said = said if answer else words
            silent = [host for host in hosts if host not in left]
        stuck = {host: pids for host, pids in left.items() if pids}
        return Swept(stuck, tuple(silent), said if silent else "")

    def _ask(
        self, hosts: Sequence[str], names: Collection[str]
    ) -> tuple[dict[str, tuple[int, ...]], str]:
        """Processes that are left, on each host that answered; and all that was said."""
        argv = sweep_argv(self._program, self._dialect, hosts, names, self._environ)
        said = self._run(argv, self._environ, self._answer_s + GONE_S)
        left = {
            hosts[int(rank)]: tuple(int(pid) for pid in pids.split(",") if pid)
            for rank, pids in _SWEPT.findall(said)
            if int(rank) < len(hosts)
        }
        return left, said


def run_mpiexec(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
    """Everything that an mpiexec prints; how it ends does not matter.

    Raises:
        LauncherError: if it cannot be started.
    """
    with tempfile.TemporaryFile() as output:  # not a pipe, which an ssh left behind would hold open
        try:
            child = subprocess.Popen(
                argv,
                cwd="/",  # the ranks', too: every host has it
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is the driver's to handle
            )
        except OSError as error:
            raise LauncherError(f"{argv[0]} cannot be started: {error}") from error
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with every ssh that still waits for its host
        child.wait()
        output.seek(0)
        return output.read().decode(errors="replace")
