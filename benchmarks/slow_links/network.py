"""Nodes of one machine: network namespaces on a bridge, each behind one rate-limited link.

A node's link has the same limit both ways: what leaves is held at the node's own interface, what
arrives at the bridge's port to it, so that several senders share the receiver's link as they would
on a real switch. Traffic inside a node goes over its loopback and is not limited.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

INTERFACE = "e0"
"""A node's own end of its link."""

_CLONE_NEWNET = 0x40000000
_NAMESPACES = Path("/run/netns")
_LINKS = Path("/sys/class/net")
_NAME = re.compile(r"sl(\d+)(?:b|n\d+)")
# As TCP hands packets to the device. Small, for a burst must hold one.
_PACKET_BYTES = 16 * 1024
# What may pass at once after a pause: little, else much of every layer would cross for nothing, but
# enough that a busy machine, which looks after its queues late, still fills its links.
_BURST_S = 0.02
_MIN_BURST_BYTES = 20 * 1024
_QUEUE_S = 0.1  # of a full link; at least what a few connections need to keep it busy
_MIN_QUEUE_BYTES = 2**20


class NetworkError(Exception):
    """The machine cannot make such a network; the message names the remedy."""


class SlowNetwork:
    """Namespaces ``0 .. num_nodes - 1``, made on entering and removed on leaving.

    Names carry this process's id, so that two runs do not meet; what dead processes have left
    behind is removed first.

    Args:
        num_nodes: 1 to 250.
        rate_mbit_per_s: limit of every node's link, each way; 10^6 bits per second.

    Raises:
        NetworkError: on entering, without root, iproute2, or the kernel's tbf.
    """

    def __init__(self, num_nodes: int, rate_mbit_per_s: float) -> None:
        if not 1 <= num_nodes <= 250:
            raise NetworkError(f"num_nodes is {num_nodes}; the bridge's subnet has 1 to 250")
        self.num_nodes = num_nodes
        self.rate_mbit_per_s = rate_mbit_per_s
        self._prefix = f"sl{os.getpid()}"

    def __enter__(self) -> SlowNetwork:
        check_machine()
        remove_stale()
        bridge = f"{self._prefix}b"
        try:
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "link", "set", bridge, "up")
            for node in range(self.num_nodes):
                self._add(node, bridge)
            self.set_rate(self.rate_mbit_per_s)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _remove({self._prefix})

    def _add(self, node: int, bridge: str) -> None:
        name = self._name(node)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", INTERFACE, "netns", name)
        _run("ip", "link", "set", name, "master", bridge, "up")
        for where in ((), ("-n", name)):
            device = INTERFACE if where else name
            _run("ip", *where, "link", "set", device, "gso_max_size", str(_PACKET_BYTES))
        _run("ip", "-n", name, "addr", "add", f"{self.address(node)}/24", "dev", INTERFACE)
        _run("ip", "-n", name, "link", "set", INTERFACE, "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def set_rate(self, rate_mbit_per_s: float) -> None:
        """Limit every link to another rate, each way."""
        rate_bytes = rate_mbit_per_s * 1e6 / 8
        queue = max(_MIN_QUEUE_BYTES, int(_QUEUE_S * rate_bytes))
        limit = (
            "root", "tbf", "rate", f"{rate_mbit_per_s * 1e6:.0f}bit",
            "burst", str(max(_MIN_BURST_BYTES, int(_BURST_S * rate_bytes))), "limit", str(queue),
        )  # fmt: skip
        for node in range(self.num_nodes):
            name = self._name(node)
            _run("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, *limit)
            _run("tc", "qdisc", "replace", "dev", name, *limit)
        self.rate_mbit_per_s = rate_mbit_per_s

    def address(self, node: int) -> str:
        """The address on which a node's processes listen; the machine itself does not have it."""
        return f"10.77.0.{node + 1}"

    def namespace(self, node: int) -> str:
        """A node's name for ``ip netns`` and ``enter_namespace``."""
        return self._name(node)

    def enter(self, node: int) -> None:
        """Move the calling process into a node; for a child just forked."""
        enter_namespace(self._name(node))

    def link_bytes(self, node: int) -> int:
        """Bytes that crossed a node's link so far, headers included: the busier direction."""
        # The bridge's port sees the link from the other side, without entering the namespace.
        port = _LINKS / self._name(node) / "statistics"
        return max(int((port / f"{way}_bytes").read_text()) for way in ("rx", "tx"))

    def dropped_packets(self) -> int:
        """Packets that did not fit into a link's queue so far; TCP sent them again."""
        outputs = [
            _run("tc", *where, "-s", "qdisc", "show", "dev", device)
            for node in range(self.num_nodes)
            for where, device in (((), self._name(node)), (("-n", self._name(node)), INTERFACE))
        ]
        return sum(int(n) for out in outputs for n in re.findall(r"dropped (\d+)", out))

    def _name(self, node: int) -> str:
        return f"{self._prefix}n{node}"


def enter_namespace(name: str) -> None:
    """Move the calling process, which has no other threads yet, into a network namespace."""
    handle = os.open(_NAMESPACES / name, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"setns to {name}: {os.strerror(code)}")
    finally:
        os.close(handle)


def check_machine() -> None:
    """Raise NetworkError if this process cannot make namespaces and limit links."""
    if os.geteuid() != 0:
        raise NetworkError("network namespaces need root: run this as root, or with sudo")
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise NetworkError(f"{' and '.join(missing)} not found: install the package iproute2")


def remove_stale() -> None:
    """Remove what runs have left whose process is gone (killed before it could)."""
    names = {*_listed(_NAMESPACES), *_listed(_LINKS)}
    found = {match[0]: match[1] for name in names if (match := _NAME.fullmatch(name))}
    _remove({f"sl{pid}" for pid in found.values() if not Path(f"/proc/{pid}").exists()})


def _remove(prefixes: Iterable[str]) -> None:
    """Delete all namespaces and links of the given runs; whatever is not there is no error."""
    for prefix in prefixes:
        mine = re.compile(rf"{prefix}(b|n\d+)")
        for name in filter(mine.fullmatch, _listed(_LINKS)):
            with contextlib.suppress(NetworkError):
                _run("ip", "link", "del", name)
        for name in filter(mine.fullmatch, _listed(_NAMESPACES)):
            with contextlib.suppress(NetworkError):
                _run("ip", "netns", "del", name)


def _listed(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


def _run(*argv: str) -> str:
    """Run a program to its end; its standard output."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30.0)
    if done.returncode != 0:
        raise NetworkError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout
