"""Checks of the cluster: link speed, speed inside a node, and equal compute."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.slow_links.cluster import SlowCluster
from benchmarks.slow_links.network import SlowNetwork
from benchmarks.slow_links.processes import Processes

_PORT = 29400
_TIMEOUT_S = 30.0


class SelfCheckError(Exception):
    """The cluster is not as specified; measurements on it would mean nothing."""


def transfer_mbit_per_s(
    network: SlowNetwork, sender: int, receiver: int, folder: Path, num_bytes: int
) -> float:
    """Speed of so much payload on a TCP connection between two nodes, or inside one."""
    report = folder / "transfer.txt"

    def receive() -> int:
        network.enter(receiver)
        with socket.create_server((network.address(receiver), _PORT)) as server:
            print("listening", flush=True)
            connection, _ = server.accept()
            with connection:
                report.write_text(str(_drain(connection, num_bytes)))
        return 0

    def send() -> int:
        network.enter(sender)
        with _connected(network.address(receiver)) as connection:
            connection.sendall(bytes(num_bytes))
        return 0

    with Processes([receive, send], folder, _TIMEOUT_S) as both:
        for _ in both.lines():
            pass
        both.wait()
    return float(report.read_text())


def _connected(address: str) -> socket.socket:
    """A connection to a server that is just being started."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((address, _PORT))
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody listens at {address}:{_PORT}")
        time.sleep(0.01)


def _drain(connection: socket.socket, num_bytes: int) -> float:
    """Mbit/s of the second half: the link lets some of the first through in a burst."""
    received, skipped, begin = 0, 0, 0.0
    while data := connection.recv(2**16):
        received += len(data)
        if not skipped and received >= num_bytes // 2:
            skipped, begin = received, time.perf_counter()
    return (received - skipped) * 8e-6 / (time.perf_counter() - begin)


def check_network(cluster: SlowCluster, tolerance: float = 0.1) -> tuple[float, float]:
    """Measured Mbit/s between two nodes and inside one.

    Raises:
        SelfCheckError: if a link is off its rate by more than ``tolerance``, or a node's inside is
            not at least ten times as fast.
    """
    network = cluster.network
    rate = network.rate_mbit_per_s
    two_seconds = int(2 * rate * 1e6 / 8)
    last = network.num_nodes - 1
    across = transfer_mbit_per_s(network, 0, last, cluster.folder, two_seconds)
    inside = transfer_mbit_per_s(network, 0, 0, cluster.folder, 2**26)
    if abs(across - rate) > tolerance * rate:
        raise SelfCheckError(f"links of {rate:.0f} Mbit/s carry {across:.0f} Mbit/s")
    if inside < 10 * rate:
        raise SelfCheckError(f"inside a node only {inside:.0f} Mbit/s, with links of {rate:.0f}")
    return across, inside


def compute_spread(make: Callable[[int], SlowCluster], sizes: Sequence[int]) -> dict[int, float]:
    """Median GFLOPS of a rank for each number of nodes, all computing and none communicating."""
    speeds: dict[int, float] = {}
    for num_nodes in sizes:
        with make(num_nodes) as cluster:
            speeds[num_nodes] = statistics.median(cluster.compute_speed())
    return speeds


def load_average() -> str:
    """The machine's load, to judge whether anything else ran meanwhile."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())
