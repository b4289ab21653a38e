"""A process that starts ranks fast: it has the trainer imported and forks what is asked for.

Importing torch takes seconds, a fork of a process that has it takes milliseconds. The server
is single-threaded and never trains, so its forks are sound: it has no thread that could hold a
lock, no process group and no GPU context.

``ForkServer`` is the driver's end, ``serve`` the server's. For every trial the driver makes a
socket pair and passes one end; the server forks a ``Shepherd`` that takes it from there.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from slurm.launcher import LauncherError
from slurm.local.shepherd import Request, Shepherd
from slurm.python import module_argv

# One thread: numerical libraries start their threads when imported, and forks would lose them.
_SINGLE_THREADED = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)


class Ranks:
    """The running ranks of one trial, as the driver sees them."""

    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._buffer = b""
        self.exit_codes: dict[int, int] = {}  # rank -> code; negative: the signal. In order of end
        self.started = False  # a shepherd has the trial
        self.unwritten = ""  # why lines are missing in the logs
        self.gone = False  # no process of the trial is left
        self.lost = False  # the shepherd itself died: nobody knows what is left

    def poll(self) -> bool:
        """Whether it is over: all gone, or lost. Does not block."""
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is over, at most so long; whether it is."""
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

    def terminate(self) -> None:
        """Ask every rank to end (SIGTERM to its process group)."""
        self._order("term")

    def kill(self) -> None:
        """Kill everything that descends from the trial."""
        self._order("kill")

    def close(self) -> None:
        """Give the socket back; whatever is left is killed."""
        self._conn.close()

    def _note(self, message: object) -> None:
        if message == "started":
            self.started = True
        elif message == "gone":
            self.gone = True
        elif isinstance(message, list):
            self.exit_codes[message[0]] = message[1]
        elif isinstance(message, dict):
            self.unwritten = message["unwritten"]

    def _order(self, order: str) -> None:
        with contextlib.suppress(OSError):  # over already
            self._conn.settimeout(None)
            self._conn.sendall(json.dumps(order).encode() + b"\n")


class ForkServer:
    """Starts ranks; safe to use from several threads. Its process starts with the first of them.

    Args:
        preload: module that is imported in the server the first time it is asked for.
    """

    def __init__(self, preload: str) -> None:
        self.preload = preload
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server

    def start(self, request: Request) -> Ranks:
        """Start the ranks of a trial.

        Raises:
            LauncherError: if the server has died.
        """
        ours, theirs = socket.socketpair()
        order = b"f" if request.module else b"x"
        with self._lock, theirs:
            try:
                self._send(order, theirs)
            except OSError:  # it has died, killed for the machine's memory perhaps: one more
                self._stop_server()
                try:
                    self._send(order, theirs)
                except OSError as error:
                    self._errors.seek(0)
                    said = self._errors.read().decode(errors="replace").strip()
                    raise LauncherError(f"the fork server died: {said or error}") from error
        ours.sendall(request.to_json().encode() + b"\n")
        return Ranks(ours)

    def close(self) -> None:
        """End the server. Trials that still run are not touched."""
        with self._lock:
            self._stop_server()
            self._errors.close()

    def _send(self, order: bytes, conn: socket.socket) -> None:
        if self._control is None:
            self._start_server()
        assert self._control is not None
        socket.send_fds(self._control, [order], [conn.fileno()])

    def _stop_server(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait()
            self._control = None

    def _start_server(self) -> None:
        control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                module_argv("slurm.local.fork_server", str(theirs.fileno()), self.preload),
                cwd=Path(__file__).parents[2],
                env=os.environ | _SINGLE_THREADED,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for the driver alone
            )
        self._control = control  # only now: the next trial tries again where this failed


def serve(control: socket.socket, preload: str) -> None:
    """Fork a shepherd for each socket that arrives, until the driver is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shepherds report to the driver, not to us
    while True:
        order, fds, _, _ = socket.recv_fds(control, 1, 1)
        if not order:
            return
        conn = socket.socket(fileno=fds[0])
        if order == b"f" and preload not in sys.modules:
            # An error is the ranks' to report: they will meet it again.
            with contextlib.suppress(Exception):
                importlib.import_module(preload)
                importlib.import_module(f"{preload}.__main__")
            sys.modules.pop(f"{preload}.__main__", None)  # runpy warns of what it finds there
            gc.freeze()  # collections in the ranks then leave the shared pages shared
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            Shepherd(conn).run()
            os._exit(0)
        conn.close()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
