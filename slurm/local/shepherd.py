"""One trial's ranks on this machine, and the process that answers for all of them.

The shepherd is forked from the fork server, starts the ranks, and reports their ends to the
driver over a socket. Two facts of Linux let it promise that nothing outlives the trial:

* it is a *child subreaper*: whatever a rank starts and abandons, in however many sessions of its
  own, becomes the shepherd's child again. When it has no child left, nothing of the trial is left;
* its socket reaches end of file when the driver dies, however it dies: it then kills all it has.

Driver and shepherd exchange lines of JSON: a ``Request``, then orders (``"term"``, ``"kill"``) one
way; ``"started"``, ``[rank, exit code]`` the other, ``{"unwritten": why}`` if lines are missing in
the logs, and ``"gone"`` when nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import random
import resource
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from slurm import processes
from slurm.local.log_merger import LineLog
from slurm.outcome.watch import STDERR_NAME, STDOUT_NAME
from slurm.trial import TRIAL_VARIABLE

_FULL_DISK_S = 0.5  # between two tries to write what a full disk did not take
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Request:
    """What a shepherd has to start."""

    name: str
    argv: list[str]
    directory: str  # of the trial; stdout.log and stderr.log lie there
    started_in: str  # of the ranks
    env: dict[str, str]  # of every rank
    rank_env: list[dict[str, str]]  # of each rank, on top
    memory_bytes: int | None
    module: str | None  # run this preloaded module in a fork instead of executing argv
    failure_grace_s: float  # for the other ranks, after one has failed

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> Request:
        return Request(**json.loads(line))


def marker(name: str) -> str:
    """What an open file of every process of a trial is called, as /proc shows it.

    A forked rank shows its server's environment in /proc, so ``TRIAL_VARIABLE`` is not enough.
    """
    return f"/memfd:meshtune-{name} (deleted)"


class Shepherd:
    """Starts the ranks of one trial and sees them all end."""

    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._pids: dict[int, int] = {}  # process id of each running rank -> rank
        self._deadline: float | None = None  # when to kill what is left after a failure
        self._killing = False
        self._orders = b""
        self._logs: list[LineLog] = []
        self._wake, wake_w = socket.socketpair()
        self._wake.setblocking(False)
        wake_w.setblocking(False)
        self._wake_w = wake_w

    def run(self) -> None:
        """Serve the one request on the socket; returns when no process of it is left."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_w.fileno(), warn_on_full_buffer=False)
        request = self._read_request()
        if request is None:
            return
        # In this order: whoever looks for the trial after its driver's death finds the mark, or
        # nothing is started any more. The server may have been importing torch when it died.
        os.memfd_create(f"meshtune-{request.name}", 0)  # inherited; see ``marker``
        if self._driver_is_dead():
            return
        directory = Path(request.directory)
        try:
            self._logs = [LineLog(directory / name) for name in (STDOUT_NAME, STDERR_NAME)]
        except OSError as error:
            self._send({"unwritten": str(error)})
            self._send("gone")
            return
        for rank in range(len(request.rank_env)):
            self._start_rank(request, rank)
        self._send("started")
        self._obey()  # orders that came with the request
        while self._reap(request.failure_grace_s):
            if self._killing:
                processes.send(processes.descendants(os.getpid()), signal.SIGKILL)
            self._wait()
        for log in self._logs:
            log.close()
        if problems := [log.problem for log in self._logs if log.problem]:
            self._send({"unwritten": "; ".join(problems)})
        self._send("gone")

    def _read_request(self) -> Request | None:
        while b"\n" not in self._orders:
            data = self._conn.recv(65536)
            if not data:
                return None
            self._orders += data
        line, _, self._orders = self._orders.partition(b"\n")
        return Request.from_json(line.decode())

    def _driver_is_dead(self) -> bool:
        poll = select.poll()
        poll.register(self._conn, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _start_rank(self, request: Request, rank: int) -> None:
        outputs = [log.open_writer() for log in self._logs]
        pid = os.fork()
        if pid == 0:
            self._become_rank(request, rank, outputs)
        for output in outputs:
            os.close(output)
        with contextlib.suppress(OSError):  # it has done so itself, and executed its program
            os.setpgid(pid, pid)
        self._pids[pid] = rank

    def _become_rank(self, request: Request, rank: int, outputs: list[int]) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _redirect(outputs)
            for end in (self._conn, self._wake, self._wake_w):
                end.close()
            status = run_rank(request, rank)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _reap(self, grace_s: float) -> bool:
        """Collect what has ended; False when there is nothing left to wait for."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                break
            rank = self._pids.pop(pid, None)
            if rank is None:
                continue  # a grandchild that its parent had left
            code = os.waitstatus_to_exitcode(status)
            self._send([rank, code])
            if code != 0 and self._deadline is None:
                self._deadline = time.monotonic() + grace_s
        out_of_time = self._deadline is not None and time.monotonic() >= self._deadline
        if not self._pids or out_of_time:
            self._killing = True
        return True

    def _wait(self) -> None:
        """Sleep until a child ends, an order comes, or a deadline passes."""
        timeout_s = None
        if self._killing:
            timeout_s = 0.05  # a process that was being forked may have escaped the signal
        elif self._deadline is not None and self._deadline < math.inf:
            timeout_s = max(0.0, self._deadline - time.monotonic())
        if any(log.waiting for log in self._logs):
            timeout_s = min(_FULL_DISK_S, math.inf if timeout_s is None else timeout_s)
        sources: list[socket.socket | int] = [self._wake]
        sources += [] if self._killing else [self._conn]
        sources += [end for log in self._logs for end in log.read_ends]
        ready, _, _ = select.select(sources, [], [], timeout_s)
        for log in self._logs:
            log.pump()
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(4096)
        if self._conn in ready:
            try:
                data = self._conn.recv(4096)
            except OSError:
                data = b""
            self._killing = not data  # the driver is dead
            self._orders += data
            self._obey()

    def _obey(self) -> None:
        *lines, self._orders = self._orders.split(b"\n")
        if b'"term"' in lines:
            for pid in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGTERM)
            self._deadline = math.inf  # from here on the driver decides how long to wait
        if b'"kill"' in lines:
            self._killing = True

    def _send(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the driver may be dead
            self._conn.sendall(json.dumps(message).encode() + b"\n")


def run_rank(request: Request, rank: int) -> int:
    """Turn this freshly forked process into a rank; returns its exit code if it did not exec."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(request.started_in)
    env = {**request.env, **request.rank_env[rank], TRIAL_VARIABLE: request.name}
    if request.memory_bytes is not None:
        limit = (request.memory_bytes, request.memory_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, limit)
    if request.module is None:
        return _execute(request.argv, env)
    return _run_module(request.module, request.argv, env)


def _redirect(outputs: list[int]) -> None:
    """Standard input from nowhere, standard output and error to the given descriptors."""
    opened = [os.open(os.devnull, os.O_RDONLY), *outputs]
    for target, fd in enumerate(opened):
        os.dup2(fd, target)
        os.close(fd)


def _execute(argv: list[str], env: Mapping[str, str]) -> int:
    # Python ignores these two; a program it starts expects them as they are elsewhere.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"meshtune: cannot start {argv[0]!r}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126


def _run_module(module: str, argv: list[str], env: Mapping[str, str]) -> int:
    """As ``python -m module`` would, but with its imports done before the fork."""
    os.environ.clear()
    os.environ.update(env)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    random.seed()
    torch = sys.modules.get("torch")
    if torch is not None and "OMP_NUM_THREADS" in env:  # torch read the server's when imported
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    sys.argv = [module, *argv]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
