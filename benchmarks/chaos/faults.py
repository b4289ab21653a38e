"""Faults, and the table of all of them.

A fault is a generator function of the round and of what was drawn for it; it does something, and
each ``yield`` lets the search continue for so many seconds. At the round's end it is closed, so
that ``finally`` can undo the fault. To add one: a function with ``@fault(...)`` in one of
the modules ``*_faults``.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from benchmarks.chaos.plan import Planned
from benchmarks.chaos.world import World

Course = Generator[float, None, None]
Act = Callable[[World, Planned], Course]
LOCAL, SRUN, MPIEXEC = ("local",), ("srun",), ("mpiexec",)
ALL = LOCAL + SRUN + MPIEXEC
CONTINUE, INTERRUPTED = 3, 130
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Fault:
    """A row of the table of faults.

    Attributes:
        act: what it does.
        launchers: with which it can be.
        weight: how often it is drawn, relative to others.
        hold_s: the least and the most that it lasts.
        interrupts: how many times it can make one trial run again.
        cost_s: time that it costs a round.
    """

    act: Act
    launchers: tuple[str, ...] = ALL
    weight: float = 1.0
    hold_s: tuple[float, float] = (0.0, 0.0)
    interrupts: int = 1
    cost_s: float = 3.0


FAULTS: dict[str, Fault] = {}


def fault(**row: Any) -> Callable[[Act], Act]:
    """Make a generator function a fault; see :class:`Fault`."""

    def add(act: Act) -> Act:
        FAULTS[act.__name__] = Fault(act, **row)
        return act

    return add


def chosen(items: list[Any], planned: Planned) -> Any:
    """One of several that a fault may hit."""
    return items[int(planned.pick * len(items))]
