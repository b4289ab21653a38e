"""The local launcher's fork server: it imports the trainer once, and forks an agent per trial.

``ForkServer`` is the driver's end, ``serve`` the server's. For every trial the driver makes a
socket pair and passes one end, which is the agent's connection (:mod:`slurm.agent`). The agent
inherits the imports, so it forks the trial's ranks itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from foundation.python import module_argv
from slurm.agent import Agent
from slurm.agents import Agents, Pump
from slurm.forked_rank import load, run_rank, started_threads
from slurm.launcher import LauncherError
from slurm.trial import Lease, TrialSpec

_FORKED, _EXECUTED = b"f", b"x"  # whether a trial's ranks need the imports
_AGENT_S = 2.0  # for an agent to exit after its orders end, unless it has been stopped
_SERVER_ENV = {
    # Numerical libraries start their threads when imported, and forks would lose them.
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "PYTHONUNBUFFERED": "1",  # as every rank has it
}


def marker(name: str) -> str:
    """Name, in /proc, of a file that every process of a trial holds open.

    A forked rank shows its server's environment in /proc, so ``TRIAL_VARIABLE`` is not enough.
    """
    return f"/memfd:meshtune-{name} (deleted)"


class Ranks(Agents):
    """The driver's view of one trial's running ranks and their one agent."""

    def __init__(self, conn: socket.socket, num_ranks: int, failure_grace_s: float) -> None:
        super().__init__((0,), num_ranks, failure_grace_s)
        self._conn = conn
        self._pump = Pump({conn.fileno(): self.channel.feed})

    @property
    def alive(self) -> bool:
        return self._pump.alive

    def finish(self) -> None:
        """Close the socket, so that the agent kills what is left, and close the logs."""
        for end, patience_s in ((socket.SHUT_WR, _AGENT_S), (socket.SHUT_RDWR, None)):
            with contextlib.suppress(OSError):
                self._conn.shutdown(end)
            self._pump.join(patience_s)
        self._conn.close()
        super().finish()

    def _send(self, data: bytes) -> None:
        self._conn.sendall(data)


class ForkServer:
    """Starts ranks; thread-safe. The server's process starts with the first trial.

    The server imports the module ``preload`` before the first fork that needs it. After one rank
    has failed, the others of its trial may run on for ``failure_grace_s``.
    """

    def __init__(self, preload: str, failure_grace_s: float) -> None:
        self.preload = preload
        self._failure_grace_s = failure_grace_s
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server

    def start(self, spec: TrialSpec, lease: Lease, order: Mapping[str, object]) -> Ranks:
        """Start the ranks of a trial; see :mod:`slurm.agent`.

        Raises LauncherError if the server has died, OSError if the trial has no room for logs.
        """
        ours, theirs = socket.socketpair()
        needs = (_FORKED if order["forked"] else _EXECUTED) + spec.name.encode()
        with self._lock, theirs:
            try:
                self._send(needs, theirs)
            except OSError:  # the server has died, perhaps out of memory: start it once more
                self._stop_server()
                try:
                    self._send(needs, theirs)
                except OSError as error:
                    self._errors.seek(0)
                    said = self._errors.read().decode(errors="replace").strip()
                    raise LauncherError(f"the fork server died: {said or error}") from error
        ranks = Ranks(ours, spec.world_size, self._failure_grace_s)
        try:
            ranks.begin(spec, lease, order)
        except BaseException:
            ranks.finish()
            raise
        return ranks

    def close(self) -> None:
        """End the server; running trials continue."""
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
        self._control = control  # not before: if the start failed, the next trial tries again


def serve(control: socket.socket, preload: str) -> Callable[[], None] | None:
    """Fork an agent for each socket that arrives, until the driver is gone.

    Returns the function that a forked rank has to run; None in the server.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # agents report to the driver, not to the server
    loaded = False
    while True:
        said, fds, _, _ = socket.recv_fds(control, 1 << 12, 1)
        if not said:
            return None
        if said[:1] == _FORKED and not loaded:
            load([preload, f"{preload}.__main__"])
            loaded = True
        threads = started_threads()
        if os.fork() == 0:
            control.close()
            return _agent(fds[0], said[1:].decode(), threads)
        os.close(fds[0])


def _agent(conn: int, name: str, threads: int) -> Callable[[], NoReturn]:
    """Run the agent of a trial; returns only in a forked rank: the function that it has to run."""
    # First the mark, then the check that the driver lives (it may have died while the server was
    # importing torch): so a later search for the trial finds the mark, or nothing was started.
    os.memfd_create(f"meshtune-{name}", 0)  # inherited; see ``marker``
    hang_up = select.poll()
    hang_up.register(conn, select.POLLRDHUP)
    if hang_up.poll(0):
        os._exit(0)

    def in_fork(order: Mapping[str, Any], index: int) -> NoReturn:
        run_rank(order, index, threads)

    return Agent(conn, conn, in_fork=in_fork, hidden=False).serve()


def main() -> None:
    """Serve; in a forked rank, run it."""
    if rank := serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]):
        rank()


if __name__ == "__main__":
    main()
