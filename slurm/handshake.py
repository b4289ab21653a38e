"""How an agent calls its driver where it inherits no connection, and each proves itself.

Both know a secret, which neither sends; the driver forgets it when all agents have called, before
any rank runs. An agent that would obey whoever listens at the driver's address, on a host where
that is somebody else's, could be made to run anything: so the driver proves itself first.

The agent sends its rank in eight digits and a nonce, the driver a nonce and its proof, the agent
its own. The standard library alone, from Python 3.8 on, as :mod:`slurm.agent`, which loads it.
"""

from __future__ import annotations

import _socket  # a third of what importing socket takes
import os

try:
    from _blake2 import blake2b
except ImportError:  # a Python that has it by another name, and takes longer
    from hashlib import blake2b


VARIABLE = "MESHTUNE_DRIVER"  # the driver's port, the secret, and addresses with commas
NONCE_BYTES = PROOF_BYTES = 32
HELLO_BYTES = 8 + NONCE_BYTES
_ANSWER_S = 20.0  # of a driver with a thousand agents


def proof(secret: bytes, side: bytes, nonces: bytes) -> bytes:
    """The proof of one side, ``agent`` or ``driver``, that it has the secret."""
    return blake2b(side + nonces, key=secret, digest_size=PROOF_BYTES).digest()


def call(rank: int, driver: str) -> int:
    """Connect an agent with its driver, as :data:`VARIABLE` describes it; gives the descriptor.

    Raises OSError if it cannot be reached at any of its addresses.
    """
    port, secret, addresses = driver.split()
    problems = []
    for address in addresses.split(","):
        try:
            found = _socket.getaddrinfo(address, int(port), 0, _socket.SOCK_STREAM)
        except OSError as error:
            problems.append(f"{address}: {error.strerror}")
            continue
        for family, kind, number, _, place in found:
            conn = _socket.socket(family, kind, number)
            try:
                conn.settimeout(_ANSWER_S)
                conn.connect(place)
                _prove(conn, rank, bytes.fromhex(secret))
                conn.settimeout(None)
                return conn.detach()
            except OSError as error:
                conn.close()
                problems.append(f"{address} port {port}: {error.strerror or error}")
    raise OSError("; ".join(problems))


def _prove(conn: _socket.socket, rank: int, secret: bytes) -> None:
    conn.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    hello = b"%8d" % rank + os.urandom(NONCE_BYTES)
    conn.sendall(hello)
    answer = take(conn, NONCE_BYTES + PROOF_BYTES)
    nonces = hello + answer[:NONCE_BYTES]
    if answer[NONCE_BYTES:] != proof(secret, b"driver", nonces):
        raise OSError("somebody else answers there")
    conn.sendall(proof(secret, b"agent", nonces))


def take(conn: _socket.socket, count: int) -> bytes:
    """Exactly so many bytes of a connection; raises OSError if it ends before."""
    data = b""
    while len(data) < count:
        piece = conn.recv(count - len(data))
        if not piece:
            raise OSError("the connection has ended")
        data += piece
    return data
