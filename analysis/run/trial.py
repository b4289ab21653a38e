"""A trial and its attempts: one configuration, and all that happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm import BLAMELESS, Kind

TOLD = frozenset(kind.value for kind in Kind if kind.observed)
"""Kinds of end that say something about the configuration, ``ok`` among them."""


def meaning(kind: str) -> tuple[str, str]:
    """What a kind of end means and its colour in the report, also of one that is not known here."""
    if kind not in set(Kind):
        return "not known to this version of meshtune", "gray"
    row = Kind(kind).row
    return row.words, row.colour


EXPLORATION = "exploration"
"""Who proposed a trial that is to sharpen the sensitivity, not to be the best."""


@dataclass
class Attempt:
    """One start of a trial's processes."""

    number: int
    name: str
    nodes: tuple[str, ...]
    started_t: float
    ended_t: float | None = None
    kind: str | None = None
    message: str = ""
    repeat: bool = False  # of a trial that had its result
    excused: bool = False  # ended with its allocation, or as nothing could be started
    objective: float | None = None
    objectives: Mapping[str, float] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    steps: int | None = None  # that it told of, line by line; None: nobody knows
    stopped_early: bool = False  # before its last step: the metrics are of the steps until then
    saved_node_s: float = 0.0  # what that cost less, as far as it is known

    @property
    def elapsed_s(self) -> float:
        """From start to end; 0 while no end is known."""
        return (self.ended_t or self.started_t) - self.started_t

    @property
    def answered(self) -> bool:
        """Whether its end says something about the configuration."""
        return self.kind in TOLD

    @property
    def costs_retry(self) -> bool:
        """Whether it is one of the few that a trial has whose nodes or launches fail."""
        return self.kind in BLAMELESS and not self.excused

    @property
    def failed(self) -> bool:
        """Whether it failed, and not because of its nodes."""
        return self.answered and self.kind != Kind.OK


@dataclass
class Trial:
    """One configuration and all that happened to it."""

    number: int
    config: dict[str, Any]
    proposed_t: float
    by: str = ""
    why: str = ""
    expected: Mapping[str, float] = field(default_factory=dict)  # by the cost model
    attempts: list[Attempt] = field(default_factory=list)
    kind: str | None = None  # None: not ended for good
    objective: float | None = None
    objectives: Mapping[str, float] = field(default_factory=dict)  # by key, where there are several
    result: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""
    stderr_tail: str = ""
    ended_t: float | None = None  # of the final end, also of a trial that was never started

    @property
    def ended(self) -> bool:
        return self.kind is not None

    @property
    def ok(self) -> bool:
        return self.kind == "ok"

    @property
    def explores(self) -> bool:
        """Whether it was proposed to sharpen the sensitivity, not to be the best."""
        return self.by == EXPLORATION

    @property
    def running(self) -> Attempt | None:
        """The attempt that was started and of which no end is known."""
        last = self.attempts[-1] if self.attempts else None
        return last if last and last.ended_t is None else None

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that starts next."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def stopped_early(self) -> bool:
        """Whether it was stopped for being too slow, and never measured to its end."""
        complete = [a for a in self.attempts if a.kind == "ok"]
        return self.ok and bool(complete) and all(a.stopped_early for a in complete)

    @property
    def measured(self) -> Attempt | None:
        """The latest attempt that succeeded and ran to its last step."""
        complete = (a for a in reversed(self.attempts) if a.kind == "ok" and not a.stopped_early)
        return next(complete, None)

    @property
    def measurements(self) -> list[float]:
        """The objective, once for every time that it was measured to the end; at least once."""
        if self.objective is None:
            return []
        complete = [a.objective for a in self.attempts if a.kind == "ok" and not a.stopped_early]
        return [x for x in complete if x is not None] or [self.objective]

    @property
    def failed_repeats(self) -> int:
        """Repeats that failed, and not because of their nodes."""
        return sum(a.repeat and a.failed for a in self.attempts)

    @property
    def saved_node_s(self) -> float:
        """Node-seconds that an early stop has saved, as far as they are known."""
        return sum(a.saved_node_s for a in self.attempts)

    @property
    def elapsed_s(self) -> float:
        return sum(a.elapsed_s for a in self.attempts)

    @property
    def node_seconds(self) -> float:
        return sum(a.elapsed_s * len(a.nodes) for a in self.attempts)
