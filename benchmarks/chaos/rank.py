"""One rank of a round's trials: what it can do, and the table of ways to train.

``EVIDENCE`` is a folder outside the run, in which the ranks hold a lock for their node and write
down whom they met there. Standard library only: it starts with every rank.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
        act: what a rank does.
        kinds: how a trial may end for good, if no fault of the machine's hits it.
        killed: how it may end besides, if what answers for it is killed after its result.
        cost_s: how much longer than a healthy trial it takes.
    """

    act: Callable[[Rank], None]
    kinds: frozenset[str]
    killed: frozenset[str] = frozenset()
    cost_s: float = 0.0


CASES: dict[str, Case] = {}


def case(
    *kinds: str, killed: Sequence[str] = (), cost_s: float = 0.0
) -> Callable[[Callable[[Rank], None]], Callable[[Rank], None]]:
    """Make a function of the rank a case; see :class:`Case`."""

    def add(act: Callable[[Rank], None]) -> Callable[[Rank], None]:
        CASES[act.__name__] = Case(act, frozenset(kinds), frozenset(killed), cost_s)
        return act

    return add


def speed(x: int, world_size: int) -> float:
    """The figure of a healthy trial."""
    return 100.0 * world_size + x


class Rank:
    """One process of a trial."""

    def __init__(self, x: int, evidence: Path) -> None:
        self.x = x
        self.evidence = evidence
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.trial = os.environ["MESHTUNE_TRIAL"]
        self.first = self.rank == 0
        self.speed = speed(x, self.world_size)

    @property
    def node(self) -> str:
        """The node that this rank is on, as the launcher calls it."""
        if "SLURMD_NODENAME" in os.environ:
            return os.environ["SLURMD_NODENAME"]
        for line in reversed(Path("../../journal.jsonl").read_text().splitlines()):
            if f'"{self.trial}"' in line and (found := re.search(r'"nodes": \[(.*?)\]', line)):
                nodes = json.loads(f"[{found[1]}]")
                return str(nodes[self.rank // int(os.environ["LOCAL_WORLD_SIZE"])])
        raise SystemExit("no attempt of this name was started")

    def hold_node(self) -> None:
        """Hold the node until this process and all that it starts have ended.

        Each rank has a lock of its own and takes it before it looks at those of other attempts: of
        two attempts at least one sees the other. Looking, it shares a lock, so that two who look
        at the same time do not take each other for its owner.
        """
        run = hashlib.sha256(str(Path.cwd().parents[1]).encode()).hexdigest()[:8]
        attempt = f"{run}-{self.node}@{self.trial}"
        fd = os.open(self.evidence / f"{attempt}@{self.rank}", os.O_RDWR | os.O_CREAT, 0o644)
        os.set_inheritable(fd, True)
        fcntl.flock(fd, fcntl.LOCK_EX)
        for other in self.evidence.glob(f"{run}-{self.node}@*"):
            if other.name.startswith(f"{attempt}@"):
                continue
            with other.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    self.note("met", f"{self.trial} met {other.name.split('@')[1]} on {self.node}")

    def note(self, name: str, line: str) -> None:
        with (self.evidence / name).open("a") as file:
            file.write(line + "\n")

    def train(self, seconds: float = 0.0) -> None:
        """Print a line for each step of a tenth of a second."""
        seconds = seconds or 0.2 + 0.2 * (self.x % 3)
        for step in range(round(10 * seconds)):
            print(f"step {step} of rank {self.rank}", flush=True)
            time.sleep(0.1)

    def result(self, text: str | None = None) -> None:
        """Rank 0 writes ``result.json`` atomically, and the others wait until it has.

        A full disk is waited for. Without the wait of the others one that fails by intention
        would have its peers ended before there is a result.
        """
        while not self.first:
            if Path("result.json").exists():
                return
            time.sleep(0.02)
        text = json.dumps({"status": "ok", "speed": self.speed}) if text is None else text
        patiently(lambda: Path("result.tmp").write_text(text))
        Path("result.tmp").rename("result.json")


def patiently(act: Callable[[], object]) -> None:
    """Do it again while the disk is full."""
    while True:
        try:
            act()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            time.sleep(0.1)
        else:
            return
