"""The local launcher's fork server: it has the trainer imported, and forks a shepherd per trial.

``ForkServer`` is the driver's end, ``serve`` the server's. For every trial the driver makes a
socket pair and passes one end, from which the trial's shepherd reads its order and to which it
reports, in lines of JSON: ``{"started"}``, ``{"rank", "code"}`` of each rank that ends, and
``{"gone"}`` when nothing is left, with the reason why lines are missing in the logs, or "".
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.python import module_argv
from slurm.fork_server import Order, Shepherd
from slurm.forked_rank import load, started_threads
from slurm.launcher import LauncherError
from slurm.local.log_merger import LineLog
from slurm.outcome.rank_ends import FAILURE_GRACE_S, FailureGrace
from slurm.trial import STDERR_NAME, STDOUT_NAME

_FORKED, _EXECUTED = b"f", b"x"  # whether a trial's ranks need the imports
_FULL_DISK_S = 0.5  # between two tries to write what a full disk did not take
_SERVER_ENV = {
    # Numerical libraries start their threads when imported, and forks would lose them.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONUNBUFFERED": "1",  # as every rank has it
}


def marker(name: str) -> str:
    """The name of an open file of every process of a trial, as /proc shows it.

    A forked rank shows its server's environment in /proc, so ``TRIAL_VARIABLE`` is not enough.
    """
    return f"/memfd:meshtune-{name} (deleted)"


class TrialShepherd(Shepherd):
    """The shepherd of one trial; its order has ``directory`` besides, where the logs lie.

    ``conn`` is a socket's descriptor; imports have started ``threads``.
    """

    def __init__(self, conn: int, threads: int) -> None:
        super().__init__(conn)
        self.threads = threads
        self._conn = conn
        self._logs: list[LineLog] = []
        self._unwritten = ""

    def prepare(self, order: Order) -> bool:
        self.leaving = True
        # In this order: after the driver's death, a search for the trial finds the mark, or nothing
        # is started any more. The server may have been importing torch when the driver died.
        os.memfd_create(f"meshtune-{order['trial']}", 0)  # inherited; see ``marker``
        hang_up = select.poll()
        hang_up.register(self._conn, select.POLLRDHUP)
        if hang_up.poll(0):
            return False
        directory = Path(order["directory"])
        try:
            self._logs = [LineLog(directory / name) for name in (STDOUT_NAME, STDERR_NAME)]
        except OSError as error:
            self._unwritten = str(error)
            return False
        self._report({"started": True})
        return True

    def outputs(self) -> list[int]:
        return [log.open_writer() for log in self._logs]

    def sources(self) -> Sequence[int]:
        return [end for log in self._logs for end in log.read_ends]

    def pump(self) -> float | None:
        for log in self._logs:
            log.pump()
        return _FULL_DISK_S if any(log.file.waiting for log in self._logs) else None

    def ended(self, rank: int, code: int) -> None:
        self._report({"rank": rank, "code": code})

    def gone(self) -> None:
        for log in self._logs:
            log.close()
        problems = [log.file.problem for log in self._logs if log.file.problem]
        self._report({"gone": self._unwritten or "; ".join(problems)})

    def _report(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the driver may be dead
            os.write(self._conn, json.dumps(message).encode() + b"\n")


class Ranks:
    """The running ranks of one trial, as the driver sees them."""

    def __init__(self, conn: socket.socket, failure_grace_s: float = FAILURE_GRACE_S) -> None:
        self._conn = conn
        self._buffer = b""
        self._grace = FailureGrace(failure_grace_s)
        self.exit_codes: dict[int, int] = {}  # rank -> code; negative: the signal. In order of end
        self.started = False  # a shepherd has the trial
        self.unwritten = ""  # why lines are missing in the logs
        self.gone = False  # no process of the trial is left
        self.lost = False  # the shepherd itself died, and processes may be left

    def poll(self) -> bool:
        """Whether the trial is over: all gone, or lost. Does not block."""
        if not self.wait(0.0) and self._grace.is_over(self.exit_codes):
            self.send(signal.SIGKILL)
        return self.gone or self.lost

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long until the trial is over; whether it is."""
        self._conn.settimeout(timeout_s)
        while not (self.gone or self.lost):
            try:
                data = self._conn.recv(65536)
            except (BlockingIOError, TimeoutError):
                return False
            except OSError:
                data = b""
            if not data:
                self.lost = True
            self._buffer += data
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                self._note(json.loads(line))
        return True

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to everything that descends from the trial."""
        self.order({"end": signum})

    def close(self) -> None:
        """Give the socket back; whatever is left is killed."""
        self._conn.close()

    def _note(self, message: Mapping[str, Any]) -> None:
        if "started" in message:
            self.started = True
        elif "gone" in message:
            self.gone, self.unwritten = True, message["gone"]
        else:
            self.exit_codes[message["rank"]] = message["code"]

    def order(self, order: Order) -> None:
        """Have the shepherd start the ranks, or end them."""
        with contextlib.suppress(OSError):  # over already
            self._conn.settimeout(None)
            self._conn.sendall(json.dumps(order).encode() + b"\n")


class ForkServer:
    """Starts ranks; safe to use from several threads. Its process starts with the first of them.

    The module ``preload`` is imported in the server before the first fork that needs it. Other
    ranks may go on for ``failure_grace_s`` after one has failed.
    """

    def __init__(self, preload: str, failure_grace_s: float = FAILURE_GRACE_S) -> None:
        self.preload = preload
        self._failure_grace_s = failure_grace_s
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server

    def start(self, order: Order) -> Ranks:
        """Start the ranks of a trial; see :mod:`slurm.fork_server`.

        Raises LauncherError if the server has died.
        """
        ours, theirs = socket.socketpair()
        needs = _FORKED if order["forked"] else _EXECUTED
        with self._lock, theirs:
            try:
                self._send(needs, theirs)
            except OSError:  # it has died, killed for the machine's memory perhaps: one more
                self._stop_server()
                try:
                    self._send(needs, theirs)
                except OSError as error:
                    self._errors.seek(0)
                    said = self._errors.read().decode(errors="replace").strip()
                    raise LauncherError(f"the fork server died: {said or error}") from error
        ranks = Ranks(ours, self._failure_grace_s)
        ranks.order(order)
        return ranks

    def close(self) -> None:
        """End the server. Trials that still run are not touched."""
        with self._lock:
            self._stop_server()
            self._errors.close()

    def _send(self, needs: bytes, conn: socket.socket) -> None:
        if self._control is None:
            self._start_server()
        assert self._control is not None
        socket.send_fds(self._control, [needs], [conn.fileno()])

    def _stop_server(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait()
            self._control = None

    def _start_server(self) -> None:
        control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                module_argv("slurm.local.server", str(theirs.fileno()), self.preload),
                cwd=Path(__file__).parents[2],
                env=os.environ | _SERVER_ENV,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the driver alone
            )
        self._control = control  # only now: the next trial tries again where this failed


def serve(control: socket.socket, preload: str) -> Callable[[], None] | None:
    """Fork a shepherd for each socket that arrives, until the driver is gone.

    Returns what a forked rank has to run; None in the server.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shepherds report to the driver, not to us
    loaded = False
    while True:
        needs, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not needs:
            return None
        if needs == _FORKED and not loaded:
            load([preload, f"{preload}.__main__"])
            loaded = True
        threads = started_threads()
        if os.fork() == 0:
            control.close()
            return TrialShepherd(fds[0], threads).serve()
        os.close(fds[0])


def main() -> None:
    """Serve; in a forked rank, run it."""
    if rank := serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]):
        rank()


if __name__ == "__main__":
    main()
