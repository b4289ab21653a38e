"""The nodes of an allocation, leased exclusively to trials of different widths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, product

from slurm.trial import Lease

MAX_BYPASSES = 4
PACKED = 6  # the best subset of so many first requests is chosen
_GAP = re.compile(rb"\x01+")  # free neighbours


@dataclass
class _Request:
    trial: str
    width: int
    avoided: frozenset[str]
    bypassed: int = 0


class NodePool:
    """Leases nodes roughly in the order of the requests, so that few nodes idle.

    Requests that fill the free nodes better may overtake another at most ``MAX_BYPASSES`` times;
    then every node that comes back is kept for it, so no request starves. For one thread; nothing
    here blocks. ``nodes`` are in Slurm's order, and so are those of a lease.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self._order = tuple(nodes)
        if len(set(self._order)) < len(self._order):
            raise ValueError(f"a node is listed twice: {', '.join(self._order)}")
        self._usable = set(self._order)
        self._free = set(self._order)
        self._leases: dict[str, Lease] = {}
        self._queue: list[_Request] = []

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that may be leased, now or later, in Slurm's order."""
        return tuple(n for n in self._order if n in self._usable)

    @property
    def size(self) -> int:
        """Number of nodes that may be leased, now or later: the widest possible lease."""
        return len(self._usable)

    @property
    def free(self) -> tuple[str, ...]:
        """Nodes that nobody holds, in Slurm's order."""
        return tuple(n for n in self._order if n in self._free)

    def request(self, trial: str, width: int, avoided: Iterable[str] = ()) -> None:
        """Ask for ``width`` nodes; :meth:`grants` leases them when they are free.

        It gets ``avoided`` nodes only if too few others are free then.

        Raises ValueError if the width can never be granted, or the trial has asked already.
        """
        if not 1 <= width <= self.size:
            raise ValueError(f"trial {trial} asks for {width} nodes of {self.size}")
        if trial in self._leases or any(r.trial == trial for r in self._queue):
            raise ValueError(f"trial {trial} has asked for nodes already")
        self._queue.append(_Request(trial, width, frozenset(avoided)))

    def withdraw(self, trial: str) -> None:
        """Forget a trial's waiting request, if there is one."""
        self._queue = [r for r in self._queue if r.trial != trial]

    def impossible(self) -> list[str]:
        """Trials whose request is wider than the pool is now; they no longer wait."""
        gone = [r.trial for r in self._queue if r.width > self.size]
        self._queue = [r for r in self._queue if r.width <= self.size]
        return gone

    def grants(self) -> list[Lease]:
        """Grant the requests that fit now, so that as few nodes as possible idle."""
        granted: list[Lease] = []
        while chosen := self._packed():
            for request in chosen:
                place = self._queue.index(request)
                for overtaken in self._queue[:place]:
                    overtaken.bypassed += 1
                del self._queue[place]
                lease = Lease(request.trial, self._choose(request))
                self._free.difference_update(lease.nodes)
                self._leases[request.trial] = lease
                granted.append(lease)
        return granted

    def _packed(self) -> list[_Request]:
        """Subset of the first requests that fills most free nodes; of equals the earliest."""
        # A request that can never be granted delays nobody.
        first = [r for r in self._queue if r.width <= self.size][:PACKED]
        best: list[_Request] = []
        filled = 0
        for taken in product((True, False), repeat=len(first)):
            width = sum(compress((r.width for r in first), taken))
            if filled < width <= len(self._free) and _is_fair(first, taken):
                best, filled = list(compress(first, taken)), width
        return best

    def release(self, lease: Lease) -> None:
        """Give a lease back; raises ValueError if it is not held."""
        if self._leases.get(lease.trial) != lease:
            raise ValueError(f"trial {lease.trial} does not hold {', '.join(lease.nodes)}")
        del self._leases[lease.trial]
        self._free.update(self._usable.intersection(lease.nodes))

    def remove(self, node: str) -> None:
        """Take a dead or suspect node out of the pool, for good; it stays with its lease.

        A node that the pool never had is ignored.
        """
        self._usable.discard(node)
        self._free.discard(node)

    def _choose(self, request: _Request) -> tuple[str, ...]:
        """The narrowest run of free neighbours that is wide enough, else the first free nodes.

        Neighbours in Slurm's order tend to share a switch, and the narrowest run leaves wide ones
        to wide trials.
        """
        width, among = request.width, self._free
        if len(others := self._free - request.avoided) >= width:
            among = others
        # As bytes: there may be ten thousand nodes, and this runs for every trial.
        free = bytes(map(among.__contains__, self._order))
        gaps = [gap.span() for gap in _GAP.finditer(free)]
        fitting = [(start, end) for start, end in gaps if end - start >= width]
        if not fitting:
            return tuple(n for n in self._order if n in among)[:width]
        start, _ = min(fitting, key=lambda gap: gap[1] - gap[0])
        return self._order[start : start + width]


def _is_fair(requests: Sequence[_Request], taken: Sequence[bool]) -> bool:
    """Whether no request that is left out has been overtaken too often."""
    after = 0
    for request, is_taken in zip(reversed(requests), reversed(taken), strict=True):
        if is_taken:
            after += 1
        elif after and request.bypassed + after > MAX_BYPASSES:
            return False
    return True
