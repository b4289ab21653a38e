"""Connecting an agent that inherits no connection with its driver, with mutual authentication.

Both know a secret, which neither sends; the driver forgets it when all agents have connected,
before any rank runs. The driver proves itself first: on some host its address may be somebody
else's, who could otherwise make an agent run anything.

The agent sends its rank in eight digits and a nonce, the driver a nonce and its proof, the agent
its own proof. :mod:`slurm.agent` loads this module: standard library alone, Python 3.8 or later.
"""

from __future__ import annotations

import _socket  # imports in a third of the time of socket
import os

try:
    from _blake2 import blake2b
except ImportError:  # not in every Python; hashlib takes longer to import
    from hashlib import blake2b


VARIABLE = "MESHTUNE_DRIVER"  # the driver's port, the secret, and addresses with commas
NONCE_BYTES = PROOF_BYTES = 32
HELLO_BYTES = 8 + NONCE_BYTES
_ANSWER_S = 20.0  # for the answer of a driver with a thousand agents


def proof(secret: bytes, side: bytes, nonces: bytes) -> bytes:
    """The proof of one side, ``agent`` or ``driver``, that it has the secret."""
    return blake2b(side + nonces, key=secret, digest_size=PROOF_BYTES).digest()


def call(rank: int, driver: str) -> int:
    """Connect an agent with its driver, as :data:`VARIABLE` describes it; returns the descriptor.

    Raises OSError if the driver cannot be reached at any of its addresses.
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
    """Read exactly ``count`` bytes; raises OSError if the connection ends before."""
    data = b""
    while len(data) < count:
        piece = conn.recv(count - len(data))
        if not piece:
            raise OSError("the connection has ended")
        data += piece
    return data
