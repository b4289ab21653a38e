"""The journal's events: what a line of ``journal.jsonl`` can say, as it is written and read.

Every record has ``v`` (schema version), ``t`` (seconds since the epoch), ``event`` (a class of this
module, in lower case) and the fields of that class in their order; :mod:`analysis.run.lines` makes
a line of it. A field of :func:`_sparse` is left out where it says nothing. Whatever has a default
may be missing in journals of older versions; events and keys that are not known here are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from analysis.run.lines import UNSEALED_VERSION, VERSION

Number = Annotated[int, Field(ge=0, lt=2**31)]
"""Of a trial or an attempt."""

Goal = Annotated[
    Mapping[Annotated[str, Field(pattern="^(maximize|minimize)$")], str],
    Field(min_length=1, max_length=1),
]
"""Which metric is sought, and in which direction."""

Value = str | int | float | bool | None
"""Of a parameter."""

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_LATEST_T = 253_402_300_799.0  # the end of the year 9999, beyond which there are no dates


def _sparse(default: Any = None, **factory: Any) -> Any:
    """A field that is only written where it differs from its default."""
    given = factory or {"default": default}
    return field(**given, metadata={"sparse": True})


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A driver begins a session.

    Attributes:
        space: its name.
        fingerprint: of the space.
        seed: of the proposals.
        launcher: its name.
        nodes: of the allocation.
        objective: ``{maximize|minimize: key}``.
        objectives: all of them, the first among them, where several are sought.
        identity: of the folder, which its trials' names carry: ``id``, ``path``, ``inode``.
    """

    space: str
    fingerprint: str
    seed: int
    launcher: str
    nodes: Sequence[str] = ()
    objective: Goal
    objectives: Sequence[Goal] = _sparse(())
    identity: Mapping[str, str | int] = _sparse(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """A configuration was chosen for a new trial.

    Attributes:
        trial: its number.
        config: the configuration.
        by: what chose it.
        why: the rule by which it did.
        expected: objective, low, high, fits (probability to run), gain, left; what is not known is
            absent.
    """

    trial: Number
    config: Mapping[str, Value]
    by: str = ""
    why: str = ""
    expected: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Started:
    """An attempt at a trial is about to get its processes.

    Attributes:
        trial, attempt: numbers.
        name: of the step or process group.
        nodes: that it holds.
        repeat: the trial has its result, and is measured once more.
    """

    trial: Number
    attempt: Number
    name: str
    nodes: Sequence[str]
    repeat: bool = _sparse(False)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """An attempt has ended.

    Attributes:
        trial, attempt: numbers.
        kind: how it ended.
        objective: None unless it succeeded.
        objectives: metrics by key, where several are sought.
        result: what the trainer reported; what JSON cannot hold becomes null.
        message: one line on what was seen.
        stderr_tail: the end of its standard error.
        elapsed_s: from start to end.
        steps: that it told of, line by line; None: nobody knows.
        nodes: that it held.
        final: False: the trial will run again, or this was a repeat.
        excused: it ended with its allocation, or as nothing could be started: no retry is counted.
        early: stopped before its last step, as it was too slow.
        saved_node_s: node-seconds that the stop has saved; None unless ``early``.
    """

    trial: Number
    attempt: Number
    kind: str
    objective: float | None
    objectives: Mapping[str, float] = _sparse(default_factory=dict)
    result: Mapping[str, Any] | None = None
    message: str
    stderr_tail: str = ""
    elapsed_s: float = 0.0
    steps: int | None = _sparse()
    nodes: Sequence[str] = ()
    final: bool
    excused: bool = _sparse(False)
    early: bool = _sparse(False)
    saved_node_s: float | None = _sparse()


@dataclass(frozen=True, kw_only=True)
class Closed:
    """The session ended by itself.

    Attributes:
        reason: why.
        code: of the process that drove it; None where that was no process of its own.
    """

    reason: str
    code: int | None = _sparse()


Event = Opened | Proposed | Started | Ended | Closed
_CLASSES: dict[str, type[Event]] = {
    event.__name__.lower(): event for event in (Opened, Proposed, Started, Ended, Closed)
}


def to_record(event: Event, t: float) -> dict[str, Any]:
    """The journal's record of an event at ``t`` (seconds since the epoch)."""
    record: dict[str, Any] = {"v": VERSION, "t": t, "event": type(event).__name__.lower()}
    for each in fields(event):
        value = getattr(event, each.name)
        if not each.metadata.get("sparse") or value != _default(each):
            record[each.name] = _finite(value) if each.name == "result" else value
    return record


def from_record(record: Mapping[str, Any]) -> Event | None:
    """The event of a record; None for one of a later version, which this one does not know.

    Raises:
        ValueError: if a value is missing that every version writes, or is of the wrong type.
    """
    name = record.get("event")
    if not isinstance(name, str) or name not in _CLASSES:
        if not isinstance(name, str) or record.get("v") == UNSEALED_VERSION:
            raise ValueError(f"there is no event {name!r:.60}")
        return None
    values = _values_of(name)
    known = {key: record[key] for key in values.model_fields if key in record}
    try:
        values.model_validate(known)
    except ValidationError as error:
        raise ValueError(f"event {name}: {_first(error)}") from None
    return _CLASSES[name](**known)


def time_of(record: Mapping[str, Any]) -> float:
    """When a record was written, seconds since the epoch; raises ValueError if it does not say."""
    t = record.get("t")
    if type(t) not in (int, float) or not 0 <= t <= _LATEST_T:  # type: ignore[operator]
        raise ValueError(f"t is {t!r:.60}: accepted seconds since the epoch")
    return float(t)  # type: ignore[arg-type]


@cache
def _values_of(name: str) -> type[BaseModel]:
    """What checks the values of an event, and changes none."""
    event = _CLASSES[name]
    kinds = get_type_hints(event, include_extras=True)
    values: dict[str, Any] = {
        each.name: (kinds[each.name], ... if _required(each) else None) for each in fields(event)
    }
    return create_model(name, __config__=_STRICT, **values)


def _first(error: ValidationError) -> str:
    """The first of the values that are wrong, and what would be right."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"it has no {where}"
    return f"{where} is {first['input']!r:.60}: {first['msg'].lower()}"


def _required(each: Any) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _default(each: Any) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _finite(value: Any) -> Any:
    """The value with None in place of what JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
