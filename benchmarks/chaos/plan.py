"""The plan of a round: written as JSON, so that the same round can be played again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Planned:
    """One fault of a round.

    Attributes:
        fault: its name.
        after: lines of the journal after which it comes.
        delay_s: time between that line and the fault.
        hold_s: how long it lasts, if it lasts.
        pick: 0 to 1; chooses its victim.
    """

    fault: str
    after: int
    delay_s: float
    hold_s: float
    pick: float


@dataclass(frozen=True)
class Plan:
    """A round.

    Attributes:
        launcher: ``local``, ``srun`` or ``mpiexec``.
        seed: of the search.
        policy: chooses configurations.
        cases: behaviours of the trainer; a parameter of the space.
        widths: nodes of a trial; a parameter, too.
        xs: values of a parameter that only changes the objective.
        trials: the budget.
        repeats: of finalists; 0: none.
        faults: in the order in which they may come.
        shared: whether trials share launches.
        report: whether drivers write a report, which takes as much of a CPU as all else.
    """

    launcher: str
    seed: int
    policy: str
    cases: tuple[str, ...]
    widths: tuple[int, ...]
    xs: tuple[int, ...]
    trials: int
    repeats: int = 0
    faults: tuple[Planned, ...] = ()
    shared: bool = False
    report: bool = True

    @property
    def configurations(self) -> int:
        """Number of configurations of the space."""
        return len(self.cases) * len(self.widths) * len(self.xs)

    def without(self, fault: Planned) -> Plan:
        return replace(self, faults=tuple(f for f in self.faults if f is not fault))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        faults = tuple(Planned(**fault) for fault in fields.pop("faults"))
        lists = {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
        return Plan(**{**fields, **lists}, faults=faults)

    def __str__(self) -> str:
        faults = ", ".join(f"{f.fault} after {f.after} lines" for f in self.faults) or "no fault"
        sharing = " in shared launches" if self.shared else ""
        return f"{self.trials} trials of {', '.join(self.cases)}{sharing}; {faults}"
