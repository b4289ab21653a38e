"""The ranks of a run: their places, how they meet, how they learn that one of them failed.

A failed rank cannot simply leave: peers may wait for it in a collective, where gloo notices the
broken connection, NCCL only its timeout, and neither knows the cause. So every rank has a thread
that waits on a key of the TCP store through which they met. The failed rank sets it (or breaks the
connection, if it hosts the store), and the thread ends its process wherever the main thread is. No
collective, shared file system or polling, and the same for every backend.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from trainer.plan.limits import ConfigError
from trainer.runtime.exit_codes import EXIT_PEER_FAILED

_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_NEWS = "meshtune/news"  # why a rank failed; empty: all is done
_PARTED = "meshtune/parted"
_FOREVER = timedelta(days=365)
# A broken connection and the news of its cause arrive together; the wait is for a slow machine.
_NEWS_S = 5.0
_LINGER_S = 0.3


@dataclass(frozen=True)
class RankEnvironment:
    """This process's place among the ranks, and where they meet."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str = ""
    master_port: int = 0

    def variables(self) -> dict[str, str]:
        """Torch's environment variables, which devices and meshes read."""
        return {name: str(getattr(self, name.lower())) for name in _PLACE}


def rank_environment(environ: Mapping[str, str]) -> RankEnvironment:
    """Read torch's variables (``RANK`` ...), else those of a Slurm step, else a single process.

    Raises ConfigError if variables are missing, are not numbers, or contradict each other.
    """
    if "RANK" in environ:
        rank, world_size = (_number(environ, name) for name in _PLACE[:2])
        local_rank = _number(environ, _PLACE[2], default=0 if world_size == 1 else None)
        local_world_size = _number(environ, _PLACE[3], default=1 if world_size == 1 else None)
    elif "SLURM_PROCID" in environ and "SLURM_NTASKS" in environ:
        rank, world_size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_NTASKS")
        local_rank, local_world_size = _number(environ, "SLURM_LOCALID"), _tasks_here(environ)
    else:
        return RankEnvironment()
    if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size:
        raise ConfigError(
            f"rank {rank} of {world_size}, local rank {local_rank} of {local_world_size}: "
            "a rank is below its count; check what started the ranks"
        )
    if world_size == 1:
        return RankEnvironment()
    if "MASTER_ADDR" not in environ:
        raise ConfigError(
            "MASTER_ADDR is not set: the node of rank 0 "
            '(under Slurm: "$(scontrol show hostnames | head -n 1)")'
        )
    address = (environ["MASTER_ADDR"], _number(environ, "MASTER_PORT"))
    return RankEnvironment(rank, world_size, local_rank, local_world_size, *address)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal():
        found = f"is {text!r}, not a number" if text else "is not set"
        raise ConfigError(f"{name} {found}; start the ranks with srun, torchrun or meshtune")
    return int(text)


def _tasks_here(environ: Mapping[str, str]) -> int:
    """This node's entry in Slurm's list of tasks per node, such as ``4(x2),3``."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "")
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE {text!r} is not a list of counts")
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(environ, "SLURM_NODEID")
    if node >= len(counts):
        raise ConfigError(f"SLURM_NODEID {node} is not in SLURM_STEP_TASKS_PER_NODE {text!r}")
    return counts[node]


def end_process(code: int) -> NoReturn:
    """End the process at once; the interpreter's own shutdown may wait forever for a collective."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # unread, closed or none
            stream.flush()
    os._exit(code)


def _loopback_listener(place: RankEnvironment) -> int | None:
    """Socket for the store if all ranks are on this machine, else None.

    By default the store listens on every network and answers any client.
    """
    try:
        local = ipaddress.ip_address(place.master_addr).is_loopback
    except ValueError:  # a name: other machines may know it by another address than this one
        return None
    if not local:
        return None
    family = socket.AF_INET6 if ":" in place.master_addr else socket.AF_INET
    server = socket.create_server(
        (place.master_addr, place.master_port), family=family, backlog=socket.SOMAXCONN
    )
    return server.detach()  # the store's to close


class Peers:
    """The other ranks of this run, met by construction; ``failure``: what a failed one said."""

    def __init__(self, place: RankEnvironment, timeout_s: float) -> None:
        self.place = place
        self.failure = ""
        self.timeout = timeout = timedelta(seconds=timeout_s)
        self._leave_on_failure = True
        self._failed = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True, name="peers")
        if place.world_size == 1:
            self.store: dist.Store = dist.HashStore()
            return
        address = (place.master_addr, place.master_port, place.world_size)
        hosts = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        listener = _loopback_listener(place) if hosts else None
        self.store = dist.TCPStore(*address, hosts, timeout, master_listen_fd=listener)
        # A connection of its own: one that waits blocks other requests.
        self._line = dist.TCPStore(*address, False, timeout, wait_for_workers=False)
        self._listener.start()

    def join(self, name: str, **options: Any) -> None:
        """Make the default process group of all ranks; ``options`` say its backend."""
        dist.init_process_group(
            store=dist.PrefixStore(name, self.store),
            rank=self.place.rank,
            world_size=self.place.world_size,
            timeout=self.timeout,
            **options,
        )

    def _listen(self) -> None:
        try:
            self._line.wait([_NEWS], _FOREVER)
            self.failure = self._line.get(_NEWS).decode()
        except RuntimeError:
            self.failure = "rank 0 is gone"
        if self.failure:
            self._failed.set()
            if self._leave_on_failure:
                self.leave()

    def leave(self) -> None:
        """End this process at once, since a peer failed."""
        print(f"rank {self.place.rank} leaves: {self.failure}", file=sys.stderr, flush=True)
        self._linger()
        os._exit(EXIT_PEER_FAILED)

    def stay(self) -> None:
        """Ignore peers' failures from now on: this rank ends by itself."""
        self._leave_on_failure = False

    def have_failed(self) -> bool:
        """Whether a peer has failed, after a moment for the news to arrive."""
        return self.place.world_size > 1 and self._failed.wait(_NEWS_S)

    def tell(self, message: str) -> None:
        """Make all peers leave, because this rank failed."""
        with contextlib.suppress(RuntimeError):  # rank 0 is gone, so everybody knows
            self.store.set(_NEWS, message)
        self._linger()

    def _linger(self) -> None:
        """Keep the store alive while the news passes through it, if this rank hosts it."""
        if self.place.rank == 0 and self.place.world_size > 1:
            time.sleep(_LINGER_S)

    def gather(self, value: Any, name: str, everywhere: bool = False) -> list[Any]:
        """JSON of every rank, in rank order, on rank 0 or ``everywhere``; else an empty list."""
        keys = [f"meshtune/{name}/{rank}" for rank in range(self.place.world_size)]
        self.store.set(keys[self.place.rank], json.dumps(value))
        wanted = everywhere or self.place.rank == 0
        return [json.loads(self.store.get(key)) for key in keys] if wanted else []

    def part(self) -> None:
        """End a successful run; rank 0, the store's host, goes last, when nobody waits for it."""
        if self.place.world_size == 1:
            return
        if self.place.rank == 0:
            self.store.set(_NEWS, "")
        self._listener.join()
        self.store.add(_PARTED, 1)
        while self.place.rank == 0 and self.store.add(_PARTED, 0) < self.place.world_size:
            time.sleep(0.002)
