"""``python -m trainer.preflight OUT.json``: measure this machine on the ranks it was started with.

Rank 0 rewrites the file after every measurement, so that one that fails or hangs costs only itself
and those after it. ``meshtune preflight`` starts this and turns it into a cluster's facts.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from foundation.documents import read_document
from foundation.writing import write_atomically
from trainer.plan.limits import ConfigError
from trainer.preflight.probe import Links, Probe, ends_side_by_side, group_shapes, network_adapters
from trainer.runtime.device import Device
from trainer.runtime.exit_codes import EXIT_FAILED, EXIT_INVALID, EXIT_OK
from trainer.runtime.peers import Peers, RankEnvironment, end_process, rank_environment

COLLECTIVE_TIMEOUT_S = 120.0
SIDE_BY_SIDE_S = 30.0  # for collectives that take milliseconds
EFFORTS = read_document(Path(__file__).with_name("effort.yaml")).root.plain()


@dataclass(frozen=True)
class Effort:
    """Extent of the measurements; ``effort.yaml`` says what its parts mean."""

    seconds: float
    squares: Sequence[int]
    layers: Sequence[Sequence[int]]
    copy_bytes: int
    message_bytes: Sequence[int]


class Record:
    """The measurements so far; rank 0 also keeps them in a file."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        self.content: dict[str, Any] = {"status": "error", "message": "nothing was measured"}

    def put(self, **facts: Any) -> None:
        self.content.update(facts)
        if self._rank == 0:
            write_atomically(self._path, json.dumps(self.content, indent=1) + "\n")

    def add(self, table: str, /, **point: Any) -> None:
        """Keep one more measurement and print it."""
        self.content.setdefault(table, []).append(point)
        shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in point.items()}
        line = " ".join(f"{k}={v}" for k, v in shown.items() if not isinstance(v, list))
        self.put(message=f"ended after {table} {line}")
        if self._rank == 0:
            print(table, line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code. A rank that fails where it has peers ends its process."""
    parser = argparse.ArgumentParser(prog="python -m trainer.preflight")
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--quick", action="store_true", help="fewer groups, sizes and repeats")
    arguments = parser.parse_args(argv)
    try:
        place = rank_environment(os.environ)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INVALID
    os.environ.update(place.variables())
    record = Record(arguments.out, place.rank)
    record.put()
    peers = Peers(place, COLLECTIVE_TIMEOUT_S)
    try:
        measure(record, place, peers, arguments.quick)
    except Exception as error:
        traceback.print_exc()
        record.put(message=f"{record.content['message']}: {type(error).__name__}: {error}")
        peers.stay()
        peers.tell(f"rank {place.rank}: {type(error).__name__}: {error}")
        if place.world_size > 1:
            end_process(EXIT_FAILED)
        return EXIT_FAILED
    record.put(status="ok", message="")
    peers.part()
    if not record.content.get("side_by_side", True):
        end_process(EXIT_OK)  # the group's end would wait for collectives that hang
    if dist.is_initialized():
        dist.destroy_process_group()
    return EXIT_OK


def measure(record: Record, place: RankEnvironment, peers: Peers, quick: bool) -> None:
    """Measure everything, the cheapest and most reliable first."""
    device = Device.of_this_rank("auto")
    if place.world_size > 1:
        peers.join("preflight", backend=device.backend)
    much = Effort(**EFFORTS[device.type]["quick" if quick else "whole"])
    probe = Probe(device, place, much.seconds, COLLECTIVE_TIMEOUT_S)
    _facts(record, device, place, peers)
    _products(record, probe, much)
    record.add("copy", bytes=much.copy_bytes, gb_per_s=probe.copy_gb_per_s(much.copy_bytes))
    if device.type == "cuda":
        rates = probe.host_gb_per_s(much.copy_bytes)
        record.add("host_copy", bytes=much.copy_bytes, gb_per_s=rates)
    num_nodes = place.world_size // place.local_world_size
    shapes = group_shapes(num_nodes, place.local_world_size, quick)
    for shape in shapes:
        links = Links(probe, shape)
        for operation in shape.operations:
            for num_bytes in much.message_bytes:
                seconds = links.seconds(operation, num_bytes)
                point = {**asdict(shape), "size_bytes": num_bytes, "seconds": seconds}
                record.add("collectives", operation=operation, **point)
        if shape == shapes[-1]:
            hidden = links.hidden_share(much.message_bytes[-1], much.squares[1])
            record.put(overlap=min(1.0, max(0.001, hidden)))
        links.close()
    if place.world_size > 1:  # the last: a rank that hangs here measures no more
        own = ends_side_by_side(device, SIDE_BY_SIDE_S)
        record.put(side_by_side=all(peers.gather(own, "side_by_side", everywhere=True)))


def _facts(record: Record, device: Device, place: RankEnvironment, peers: Peers) -> None:
    """Record device, torch, hosts and network adapters."""
    own = {"host": socket.gethostname(), "cpus": sorted(os.sched_getaffinity(0))}
    ranks = peers.gather(own, "places", everywhere=True)
    first = ranks[: place.local_world_size]
    record.put(
        device=device.facts(),
        torch=str(torch.__version__),
        ranks_per_node=place.local_world_size,
        hosts=[r["host"] for r in ranks],
        cpus_per_node=len({cpu for r in first for cpu in r["cpus"]}),
        host_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        adapters=network_adapters(),
    )


def _products(record: Record, probe: Probe, much: Effort) -> None:
    shapes: list[tuple[str, Sequence[int]]] = [("square", (n, n, n)) for n in much.squares]
    shapes += [("layer", sizes) for sizes in much.layers]
    half = str(probe.device.half).removeprefix("torch.")
    formats = [(half, probe.device.half)]
    if probe.device.type == "cpu":  # GPUs train in 16 bits
        formats.append(("float32", torch.float32))
    for name, dtype in formats:
        for use, (rows, columns, inner) in shapes:
            rates = probe.gemm_tflops(rows, columns, inner, dtype)
            shape = {"rows": rows, "columns": columns, "inner": inner}
            record.add("gemm", of=use, dtype=name, **shape, tflops=rates)


if __name__ == "__main__":
    sys.exit(main())
