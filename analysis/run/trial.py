"""A trial and its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from analysis.run.events import Ended
from foundation.messages import html_table
from foundation.quantities import number, value_text
from slurm import BLAMELESS, Kind

COMPLETED = frozenset(kind.value for kind in Kind if kind.observed)
"""Kinds of end that say something about the configuration: ``ok``, and failures that it caused."""


def meaning(kind: str) -> tuple[str, str]:
    """A kind's meaning and colour in the report; kinds of later versions have one too."""
    if kind not in set(Kind):
        return "not known to this version of meshtune", "gray"
    row = Kind(kind).row
    return row.words, row.colour


@dataclass(kw_only=True)
class _Ends:
    """Something that ends, and the result it then has."""

    kind: str | None = None  # how it ended; of a trial the final end; None before it
    message: str = ""
    objective: float | None = None
    objectives: Mapping[str, float] = field(default_factory=dict)  # by key, if several
    bounded: Mapping[str, float] = field(default_factory=dict)  # metrics that have bounds
    result: Mapping[str, Any] = field(default_factory=dict)
    ended_t: float | None = None  # of a trial set also if it was never started

    def end(self, event: Ended, t: float) -> None:
        """Take over how it ended at ``t``, in seconds since the epoch."""
        self.kind, self.message, self.objective = event.kind, event.message, event.objective
        self.objectives, self.bounded = event.objectives, event.bounded
        self.result, self.ended_t = event.result or {}, t

    @property
    def ok(self) -> bool:
        return self.kind == "ok"

    @property
    def completed(self) -> bool:
        """Whether its end says something about the configuration."""
        return self.kind in COMPLETED

    @property
    def failed(self) -> bool:
        """Whether its configuration made it fail."""
        return self.completed and not self.ok


@dataclass
class Attempt(_Ends):
    """One start of a trial's processes."""

    number: int
    name: str
    nodes: tuple[str, ...]
    started_t: float
    _: KW_ONLY
    repeat: bool = False  # the trial had its result already
    excused: bool = False  # ended with its allocation, or nothing could be started
    steps: int | None = None  # seen in its log; None: not known
    stopped_early: bool = False  # the metrics are of the steps until then
    saved_node_s: float = 0.0  # by stopping early, as far as known

    @property
    def elapsed_s(self) -> float:
        """From start to end; 0 while no end is known."""
        return (self.ended_t or self.started_t) - self.started_t

    @property
    def complete(self) -> bool:
        """Whether it succeeded and ran to its last step."""
        return self.ok and not self.stopped_early

    @property
    def costs_retry(self) -> bool:
        """Whether it uses up one of the retries after a node's or a launch's failure."""
        return self.kind in BLAMELESS and not self.excused


@dataclass
class Trial(_Ends):
    """One configuration, its attempts and its result."""

    EXPLORATION: ClassVar[str] = "exploration"  # ``by`` of trials that sharpen the sensitivity

    number: int
    config: dict[str, Any]
    proposed_t: float
    by: str = ""
    why: str = ""
    expected: Mapping[str, float] = field(default_factory=dict)  # see ``Proposed``
    attempts: list[Attempt] = field(default_factory=list)
    violated: tuple[str, ...] = ()  # bounds that its metrics violate, in words
    stderr_tail: str = ""

    def _repr_html_(self) -> str:
        reached = self.objectives or (
            {} if self.objective is None else {"objective": self.objective}
        )
        values = {key: number(value) for key, value in reached.items()}
        end = f"{self.kind or 'not ended'}{self.message and ': '}{self.message}"
        rows = {"trial": str(self.number), "end": end, **values}
        return html_table(rows | {name: value_text(value) for name, value in self.config.items()})

    @property
    def ended(self) -> bool:
        return self.kind is not None

    @property
    def crashes(self) -> int:
        """Its crashes, if it waits to run again as every configuration would crash so; else 0."""
        return 0 if self.ended or self.running else sum(a.kind == "crash" for a in self.attempts)

    @property
    def explores(self) -> bool:
        """Whether it was proposed to sharpen the sensitivity, not to be the best."""
        return self.by == self.EXPLORATION

    @property
    def positive(self) -> bool:
        """Whether its objectives have a logarithm, which models predict."""
        return (self.objective or 0.0) > 0 and all(x > 0 for x in self.objectives.values())

    @property
    def running(self) -> Attempt | None:
        """The attempt that has started and not ended."""
        last = self.attempts[-1] if self.attempts else None
        return last if last and last.ended_t is None else None

    @property
    def next_attempt(self) -> int:
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def stopped_early(self) -> bool:
        """Whether it was stopped as too slow, and never measured to its last step."""
        done = [a.stopped_early for a in self.attempts if a.ok]
        return self.ok and bool(done) and all(done)

    @property
    def measured(self) -> Attempt | None:
        """The latest attempt that succeeded and ran to its last step."""
        return next((a for a in reversed(self.attempts) if a.complete), None)

    @property
    def measurements(self) -> list[float]:
        """The objective of each complete measurement; at least one for a success."""
        if self.objective is None:
            return []
        found = [a.objective for a in self.attempts if a.complete and a.objective is not None]
        return found or [self.objective]

    @property
    def failed_repeats(self) -> int:
        """Repeats that failed because of the configuration."""
        return sum(a.repeat and a.failed for a in self.attempts)

    @property
    def saved_node_s(self) -> float:
        """Node-seconds that early stops saved, as far as known."""
        return sum(a.saved_node_s for a in self.attempts)

    @property
    def elapsed_s(self) -> float:
        return sum(a.elapsed_s for a in self.attempts)

    @property
    def node_seconds(self) -> float:
        return sum(a.elapsed_s * len(a.nodes) for a in self.attempts)
