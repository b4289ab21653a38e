"""Ports for ranks that meet on this machine."""

from __future__ import annotations

import os
import random
import socket

# Between those of trials (``slurm.trial``) and those that the kernel gives to connections: of
# the latter, any connection may take the port before the ranks do. Each of pytest's workers has
# its own.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PORTS = range(30000, 32768)[_WORKER::_WORKERS]


def free_port() -> int:
    """A port that nobody listened on a moment ago.

    Raises:
        OSError: if all are taken.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))  # on all interfaces, as torch's store does
            except OSError:
                continue
            return port
    raise OSError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")
