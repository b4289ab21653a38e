"""Processes inside the nodes: forked from this one, which has torch imported, and ended together.

Importing torch takes seconds of CPU time, and sixteen imports on a few cores take a minute; a fork
takes milliseconds. This process never computes with torch and has no threads, so the fork is sound.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 2000
_EXIT_S = 20.0


class ProcessError(Exception):
    """A process of a cluster failed or took too long; the message holds the ends of the logs."""


class Processes:
    """Runs one function per place, each in a child process; none outlives the ``with`` block.

    The lines that the first child prints can be read as they come; all output goes to files.

    Args:
        tasks: what each child runs, after it has entered its node; returns an exit code.
        folder: for the logs, ``0.log``, ``1.log`` ...
        timeout_s: for all of it.
    """

    def __init__(self, tasks: Sequence[Callable[[], int]], folder: Path, timeout_s: float) -> None:
        self.tasks = tasks
        self.logs = [folder / f"{i}.log" for i in range(len(tasks))]
        self.pids: list[int] = []
        self._left: set[int] = set()
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def __enter__(self) -> Processes:
        self._pipe, theirs = os.pipe()
        try:
            for i, task in enumerate(self.tasks):
                self._start(task, self.logs[i], theirs if i == 0 else None)
        except BaseException:
            self._kill()
            raise
        finally:
            os.close(theirs)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._kill()
        os.close(self._pipe)

    def _start(self, task: Callable[[], int], log: Path, pipe: int | None) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(task, log, pipe, parent)
        self.pids.append(pid)
        self._left.add(pid)

    def lines(self) -> Iterator[str]:
        """The first child's lines until it closes its output; raises when time is up."""
        buffer = b""
        with self.logs[0].open("ab", buffering=0) as log:
            while True:
                ready, _, _ = select.select([self._pipe], [], [], self._remaining_s())
                if not ready:
                    raise self._error(f"no end after {self._timeout_s:.0f} s")
                data = os.read(self._pipe, 65536)
                if not data:
                    return
                log.write(data)
                *complete, buffer = (buffer + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in complete)

    def wait(self) -> None:
        """Until all have ended; raises if one failed, with what it and the first one printed."""
        deadline = min(self._deadline, time.monotonic() + _EXIT_S)
        failed: dict[int, int] = {}
        while self._left:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in self._left:
                self._left.discard(pid)
                if code := os.waitstatus_to_exitcode(status):
                    failed[self.pids.index(pid)] = code
            elif pid == 0:
                if time.monotonic() > deadline:
                    raise self._error("some did not end after the first had")
                time.sleep(0.01)
        if failed:
            codes = ", ".join(f"{place}: {code}" for place, code in sorted(failed.items()))
            raise self._error(f"exit codes of those that failed: {codes}", sorted(failed))

    def cpu_s(self) -> float:
        """CPU time that all of them have used so far."""
        return sum(_cpu_s(pid) for pid in self._left)

    def _remaining_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _error(self, what: str, places: Sequence[int] = ()) -> ProcessError:
        tails = [
            f"--- {self.logs[place].name}\n{tail}"
            for place in sorted({0, *places})
            if (tail := _tail(self.logs[place]))
        ]
        return ProcessError("\n".join([what, *tails]))

    def _kill(self) -> None:
        for pid in self._left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._left.clear()


def _become(task: Callable[[], int], log: Path, pipe: int | None, parent: int) -> None:
    """Run a child from its fork to its end; never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file if pipe is None else pipe, 1)
        os.dup2(file, 2)
        code = task()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _cpu_s(pid: int) -> float:
    """User and system time of a process, threads included; fields 14 and 15 of proc(5)."""
    with contextlib.suppress(OSError):  # it has just ended
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    return path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
