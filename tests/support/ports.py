"""Ports for ranks that meet on this machine."""

from __future__ import annotations

import random
import socket

# Between those of trials (``slurm.trial``) and those that the kernel gives to connections: of
# the latter, any connection may take the port before the ranks do.
_PORTS = range(30000, 32768)


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
