"""An mpiexec whose ranks are agents, which connect to the driver by TCP.

mpiexec passes its standard input to rank 0 alone, and mixes pieces of all ranks' output. So each
agent connects to a port of the driver, and proves that it belongs to this launch by a secret from
its environment (:mod:`slurm.handshake`). When all have, the port is closed and the secret is void;
only then do they get the trial's order. It carries the trial's arguments and environment, which
mpiexec therefore never sees.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slurm.agent import LINE_BYTES
from slurm.agents import TaskAgents
from slurm.channel import ANSWER_S
from slurm.handshake import HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, VARIABLE, proof, take

_PROVE_S = 10.0  # for the proof of a caller, who may be anybody
_AT_ONCE = 16  # callers answered at the same time
_POLL_S = 0.2


class MpiAgents(TaskAgents):
    """The agents of an mpiexec; ``hosts`` are the addresses of their hosts."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        num_ranks: int,
        hosts: Iterable[str],
    ) -> None:
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._called: dict[int, socket.socket] = {}  # rank -> its agent's connection
        self._waiting = b""  # orders, until all have called
        self._closed = threading.Event()  # nobody can call any more
        self._listener = _listener()
        where = f"{self._listener.getsockname()[1]} {self._secret.hex()}"
        # First, as MPICH 4.0.2 loses the last variable.
        env = {VARIABLE: f"{where} {','.join(addresses(hosts))}", **environ}
        self._num_agents = num_ranks
        try:
            super().__init__("mpiexec", argv, cwd, env, num_ranks)
        except BaseException:
            self._listener.close()
            raise
        self._admission = threading.Thread(target=self._admit, name="admission", daemon=True)
        self._admission.start()

    def let_go(self, timeout_s: float) -> None:
        with self._lock:
            self._close()
            for conn in self._called.values():
                with contextlib.suppress(OSError):
                    conn.shutdown(socket.SHUT_WR)
        super().let_go(timeout_s)

    def finish(self) -> None:
        super().finish()
        self._pump.stop()  # an ssh that is left behind may hold mpiexec's output
        for conn in self._called.values():
            conn.close()

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._waiting += data
            self._send_waiting()

    def _send_waiting(self) -> None:
        if len(self._called) < self._num_agents:
            return
        for conn in self._called.values():
            with contextlib.suppress(OSError):  # the others still have to get it
                conn.sendall(self._waiting)
        self._waiting = b""

    # ---- callers ----

    def _admit(self) -> None:
        pool = ThreadPoolExecutor(_AT_ONCE)
        while not self._closed.is_set():
            try:
                conn, _ = self._listener.accept()
            except OSError:  # closed, or too many files are open
                self._closed.wait(_POLL_S)
            else:
                pool.submit(self._answer, conn)
        pool.shutdown(wait=False)
        self._listener.close()

    def _close(self) -> None:
        self._closed.set()
        self._secret = b""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # also wakes the thread in accept

    def _answer(self, conn: socket.socket) -> None:
        """Authenticate a caller; accept it if it is an agent that has not connected yet."""
        try:
            conn.settimeout(_PROVE_S)
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonces = take(conn, HELLO_BYTES) + os.urandom(NONCE_BYTES)
            conn.sendall(nonces[-NONCE_BYTES:] + proof(self._secret, b"driver", nonces))
            said = take(conn, PROOF_BYTES)
            with self._lock:
                proven = hmac.compare_digest(said, proof(self._secret, b"agent", nonces))
                if self._closed.is_set() or not proven:
                    raise ValueError("none of this launch")
                self._take_in(int(nonces[:8]), conn)
        except (OSError, ValueError):
            conn.close()

    def _take_in(self, rank: int, conn: socket.socket) -> None:
        if rank in self._called or rank >= self._num_agents:
            raise ValueError("no agent that is missing")
        conn.settimeout(ANSWER_S)  # an agent that has been stopped reads no orders
        self._pump.add(conn.fileno(), by_lines(self.channel.feed))
        self._called[rank] = conn
        if len(self._called) == self._num_agents:
            self._close()
            self._send_waiting()


def by_lines(feed: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Pass on whole lines only, so that lines of several connections can be mixed."""
    unread = bytearray()

    def receive(data: bytes) -> None:
        unread.extend(data)
        end = unread.rfind(b"\n") + 1
        if len(unread) - end > LINE_BYTES:
            end = len(unread)  # too long for a message: this voids the channel
        feed(bytes(unread[:end]))
        del unread[:end]

    return receive


def addresses(hosts: Iterable[str]) -> list[str]:
    """Addresses at which ``hosts`` may reach this host, and its name."""
    routes = (_route(host) for host in hosts)
    return list(dict.fromkeys((*filter(None, routes), socket.gethostname())))


@functools.cache
def _route(host: str) -> str:
    """The address from which this host would reach another; "" if that is unknown."""
    try:
        family, kind, number, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, number) as probe:
            probe.connect(place)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _listener() -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=4096)
