"""A record of when nodes failed and came back, and the share of a job's time that it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from analysis.sweeps.record import read_csv
from trainer.plan.jobs import Array

DAY_S = 86400.0
SERVERS, DAYS = 400, 348.98  # of the record: those without a fault are not in it


@dataclass(frozen=True)
class FaultTrace:
    """Failures of nodes, in the order in which they began.

    Attributes:
        num_nodes: observed, those without a failure as well.
        days: of observation.
        node: of each failure, from 0.
        start_s, end_s: when the node left, and when it was back.
    """

    num_nodes: int
    days: float
    node: NDArray[np.int64]
    start_s: Array
    end_s: Array

    @classmethod
    def drawn(
        cls, num_nodes: int, days: float, per_node_day: float, repair_days: float, seed: int = 0
    ) -> Self:
        """Memoryless failures and repairs."""
        rng = np.random.default_rng(seed)
        count = rng.poisson(num_nodes * per_node_day * days)
        start_s = np.sort(rng.uniform(0, days * DAY_S, count))
        end_s = start_s + rng.exponential(repair_days * DAY_S, count)
        return cls(num_nodes, days, rng.integers(num_nodes, size=count), start_s, end_s)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The shipped record of 400 servers, 348 days: a line for each ``fault_start`` and each
        ``fault_end`` of a node."""
        frame = read_csv(path)
        frame["event_day"] = frame["event_day"].astype(float)
        frame = frame.sort_values(["node", "event_day"], kind="stable")
        begins = frame[frame["event"] == "fault_start"]
        ends = frame[frame["event"] == "fault_end"]
        # Where faults of a node overlap, which of them ends first makes no difference.
        rows = np.column_stack([begins["event_day"], ends["event_day"]]).astype(float) * DAY_S
        order = np.argsort(rows[:, 0], kind="stable")
        node = begins["node"].astype(int).to_numpy()[order]
        return cls(SERVERS, DAYS, node, *rows[order].T)

    @property
    def per_node_day(self) -> float:
        """Failures of one node per day."""
        return len(self.node) / (self.num_nodes * self.days)

    @property
    def repair_days(self) -> float:
        """Mean time until a failed node was back."""
        return float(np.mean(self.end_s - self.start_s)) / DAY_S

    def useful_share(
        self,
        nodes: int,
        interval_s: float,
        save_s: float,
        restart_s: float,
        spares: int | None = None,
    ) -> float:
        """Share of a job's time that trains and is kept, as this record would have it.

        The mean over as many jobs as there are nodes for, side by side. A job of more nodes than
        were observed meets the failures of several such clusters, at different times.

        Args:
            nodes: of the job.
            interval_s: of training between checkpoints.
            save_s: for which a checkpoint stops training.
            restart_s: from a failure to the next step.
            spares: nodes beside them, which replace failed ones until these are back; without one
                left the job waits. None: a failed node is always replaced at once.
        """
        shares = []
        for group in self._groups(nodes + (spares or 0)):
            runs = group._runs(nodes) if spares is not None else group._between()
            lasting_s = np.array([end - begin for begin, end in runs])
            saved = np.floor(np.maximum(lasting_s - restart_s, 0) / (interval_s + save_s))
            shares.append(saved.sum() * interval_s / (self.days * DAY_S))
        return float(np.mean(shares))

    def _groups(self, size: int) -> Iterator[FaultTrace]:
        """Disjoint groups of so many nodes, drawn; or one group of several shifted copies."""
        rng = np.random.default_rng(size)
        copies = -(-size // self.num_nodes)
        horizon_s = self.days * DAY_S
        moved = np.array([0.0, *rng.uniform(0, horizon_s, copies - 1)])[:, None]
        start_s = (self.start_s + moved) % horizon_s
        end_s = start_s + (self.end_s - self.start_s)
        number = self.node + self.num_nodes * np.arange(copies)[:, None]
        place = rng.permutation(copies * self.num_nodes)[number]
        order = np.argsort(start_s, axis=None, kind="stable")
        start_s, end_s, place = (of.ravel()[order] for of in (start_s, end_s, place))
        for first in range(0, copies * self.num_nodes - size + 1, size):
            own = (place >= first) & (place < first + size)
            yield FaultTrace(size, self.days, place[own] - first, start_s[own], end_s[own])

    def _between(self) -> Iterator[tuple[float, float]]:
        """Begin and end of each time without a failure."""
        edges = [0.0, *self.start_s, self.days * DAY_S]
        return itertools.pairwise(edges)

    def _runs(self, needed: int) -> Iterator[tuple[float, float]]:
        """Begin and end of each time in which the same nodes, so many, were all up."""
        events = sorted(
            [(float(t), 1, int(n)) for t, n in zip(self.start_s, self.node, strict=True)]
            + [(float(t), -1, int(n)) for t, n in zip(self.end_s, self.node, strict=True)]
        )
        faults = [0] * self.num_nodes  # of a node that are not mended
        running, idle = set(range(needed)), set(range(needed, self.num_nodes))
        begin_s: float | None = 0.0
        for time_s, change, node in events:
            faults[node] += change
            if change < 0 and not faults[node]:
                idle.add(node)
            elif node in running:
                running.remove(node)
                if begin_s is not None:
                    yield begin_s, time_s
                    begin_s = None
            elif change > 0:
                idle.discard(node)
            while len(running) < needed and idle:
                running.add(idle.pop())
            if begin_s is None and len(running) == needed:
                begin_s = time_s
        if begin_s is not None:
            yield begin_s, max(begin_s, self.days * DAY_S)
