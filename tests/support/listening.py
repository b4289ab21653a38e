"""On which addresses processes of this machine wait for connections, by the kernel's own tables."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path

from slurm import processes

_LISTEN = "0A"


def listening(pids: Iterable[int]) -> set[str]:
    """Addresses of TCP sockets that these processes listen on, such as ``0.0.0.0``."""
    sockets = set().union(*(processes.open_files(pid) for pid in pids))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTEN and f"socket:[{inode}]" in sockets:
                found.add(str(_address(local.split(":")[0])))
    return found


def only_loopback(addresses: Iterable[str]) -> bool:
    """Whether another machine can connect to none of them."""
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]  # little-endian
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address
