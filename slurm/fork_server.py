"""Ranks that are forked from a process which has their trainer's imports done.

Importing torch takes seconds, and minutes where thousands of ranks read a shared file system; a
fork of a process that has it takes milliseconds. That process never trains: it has no thread that
could hold a lock, no process group and no GPU context.

A :class:`Shepherd` starts the ranks of one trial at a time. Two facts of Linux let it promise that
nothing of a trial survives:

* it is a *child subreaper*: whatever a rank starts and abandons, in however many sessions of its
  own, becomes the shepherd's child again. Without a child left, nothing of the trial is left;
* its orders reach their end when the driver dies, however it dies: it then kills all it has.

Orders are lines of JSON: ``{"end": signal}`` sends the signal to all that descends from the ranks;
an order with these keys starts a trial:

* ``trial``: its name; ``argv``, ``cwd``: of every rank;
* ``ranks``: one object per rank to start here, with environment variables of its own;
* ``env``: variables that all of them get, ``clear``: and no others;
* ``forked``: whether ``argv`` is a Python command to run in the fork; else it is executed;
* ``memory_bytes``: RLIMIT_DATA of a rank, or null.

The local launcher forks a shepherd per trial (:mod:`slurm.local.server`). In a step that is kept
from trial to trial, each task is one (:class:`TaskShepherd`): ``python fork_server.py MODULES``
(names, with commas) is started by this file's path, by the interpreter of whatever is trained, from
Python 3.8 on, and needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence  # noqa: UP035 - Python 3.8

WORD = "MESHTUNE_RANK"
END_OF_LINE = "\x1e\n"  # ends a rank's last line; superfluous if the rank had ended it itself
_KILL_AGAIN_S = 0.05  # a process that was being forked may have escaped the signal
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

Order = Mapping[str, Any]


def _neighbour(name: str) -> Any:
    """A module beside this file, loaded without its package, which ranks must not see."""
    spec = importlib.util.spec_from_file_location(
        f"_meshtune_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_processes, _forked = _neighbour("processes"), _neighbour("forked_rank")


class Shepherd:
    """Starts the ranks of one trial at a time, and sees all that descends from them end.

    Subclasses say where reports and the ranks' output go. Orders are read from a descriptor;
    ``first_rank`` is the first one that is started here.
    """

    def __init__(self, orders: int, first_rank: int = 0) -> None:
        self.leaving = False  # no further trial is started
        self.orphaned = False  # the driver is gone: nothing is left running, and nobody listens
        self.threads = 0  # that imports have started; forks are sound without any
        self._orders = orders
        self._unread = b""
        self._first_rank = first_rank
        self._ranks: dict[int, int] = {}  # process id -> rank, of those that run
        self._busy = False  # something of a trial may be left
        self._killing = False
        self._wake, self._wake_w = os.pipe()
        for end in (self._wake, self._wake_w):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def prepare(self, order: Order) -> bool:
        """Make ready for a trial; False: nothing of it shall be started."""
        return True

    def outputs(self) -> list[int]:
        """Descriptors for standard output and error of one rank; none: they are inherited."""
        return []

    def sources(self) -> Sequence[int]:
        return ()

    def pump(self) -> float | None:
        """Do what a source may be ready for; seconds until it must be tried again, if so."""
        return None

    def ended(self, rank: int, code: int) -> None:
        """Report the end of a rank; a signal is negative."""

    def gone(self) -> None:
        """Report that nothing of the trial is left."""

    def serve(self) -> Callable[[], None]:
        """Obey until no trial is to come and nothing of one is left; then end this process.

        Returns in a forked rank alone: what it has to run, which does not return.
        """
        while self._busy or not self.leaving:
            if self._orders in self._wait():
                for order in self._read_orders():
                    if "end" in order:
                        self._signal_all(order["end"])
                        continue
                    rank = self._start(order)
                    if rank is not None:
                        return rank
            self._reap()
        os._exit(0)  # imports may have left threads that never end

    def _signal_all(self, number: int) -> None:
        """Send a signal to all that descends from the ranks."""
        _processes.send(_processes.descendants(os.getpid()), number)

    def _wait(self) -> list[int]:
        """Descriptors that are ready once a child has ended, an order has come or time is up."""
        again_s = self.pump()
        if self._killing:
            again_s = _KILL_AGAIN_S
        sources = [self._wake, *([] if self.orphaned else [self._orders]), *self.sources()]
        ready, _, _ = select.select(sources, [], [], again_s)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        return ready

    def _read_orders(self) -> list[Order]:
        try:
            data = os.read(self._orders, 1 << 16)
        except OSError:
            data = b""
        if not data:
            self.orphaned = self._busy = self._killing = self.leaving = True
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _start(self, order: Order) -> Callable[[], None] | None:
        self._busy = True
        if self.prepare(order):
            for index in range(len(order["ranks"])):
                if self._fork(index):
                    return functools.partial(_forked.run_rank, order, index, self.threads)
        return None

    def _fork(self, index: int) -> bool:
        """Start a rank; whether this process is it."""
        outputs, parent = self.outputs(), os.getpid()
        pid = os.fork()
        if pid == 0:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.setpgid(0, 0)  # what a rank sends to its group is not for the shepherd
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            _redirect([os.open(os.devnull, os.O_RDONLY), *outputs])
            for end in {self._orders, self._wake, self._wake_w} - {0}:
                os.close(end)
            return True
        for output in outputs:
            os.close(output)
        with contextlib.suppress(OSError):  # it has done so itself, and executed its program
            os.setpgid(pid, pid)
        self._ranks[pid] = self._first_rank + index
        return False

    def _reap(self) -> None:
        """Collect what has ended; once all ranks have, kill what they have left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self._busy:
                    self._busy = self._killing = False
                    self.gone()
                return
            if pid == 0:
                break
            rank = self._ranks.pop(pid, None)  # None: of what a parent had abandoned
            if rank is not None:
                killed = os.WIFSIGNALED(status)
                self.ended(rank, -os.WTERMSIG(status) if killed else os.WEXITSTATUS(status))
        self._killing = self._killing or (self._busy and not self._ranks)
        if self._killing:
            self._signal_all(signal.SIGKILL)


class TaskShepherd(Shepherd):
    """A task of a kept step: orders come on standard input, which srun hands to all tasks alike.

    When nothing of its rank is left it says so, on standard output and error alike, behind all that
    the rank had said: :data:`END_OF_LINE`, then ``MESHTUNE_RANK {"trial", "rank", "code"}`` on a
    line of its own, which slurmstepd passes on in one piece; it cuts lines of more than 1 KiB.
    The modules are imported before the first fork.
    """

    def __init__(self, modules: Sequence[str], rank: int) -> None:
        super().__init__(0, rank)
        self._modules: Sequence[str] | None = modules  # None once imported
        self._end: dict[str, Any] = {}
        # Slurm signals the task alone, unless cgroup.conf has SignalChildrenProcesses.
        signal.signal(signal.SIGTERM, self._leave)

    def prepare(self, order: Order) -> bool:
        if self._modules is not None:
            _forked.load(self._modules, order)
            self._modules = None
        self.threads = _forked.started_threads()
        self._end = {"trial": order["trial"]}
        return True

    def ended(self, rank: int, code: int) -> None:
        self._end.update(rank=rank, code=code)

    def gone(self) -> None:
        for output in () if self.orphaned else (1, 2):
            os.write(output, f"{END_OF_LINE}{WORD} {json.dumps(self._end)}\n".encode())

    def _leave(self, *_: object) -> None:
        self.leaving = True
        self._signal_all(signal.SIGTERM)


def _redirect(opened: Sequence[int]) -> None:
    """Make these descriptors standard input, output and error."""
    for target, end in enumerate(opened):
        os.dup2(end, target)
        os.close(end)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """Serve a task; in a forked rank, run it."""
    # Python has put this file's folder first, whose modules are nobody's business.
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]
    modules = [name for name in sys.argv[1].split(",") if name]
    TaskShepherd(modules, int(os.environ["RANK"])).serve()()


if __name__ == "__main__":
    main()
