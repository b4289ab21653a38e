"""The events of ``journal.jsonl``, as they are written and read.

A record has ``v`` (schema version), ``t`` (seconds since the epoch), ``event`` (a class of this
module in lower case) and the fields of that class in order; :mod:`analysis.run.lines` makes a line
of it. A ``_sparse`` field is written only if it differs from its default. Fields with a default may
be missing in journals of older versions; unknown events and keys are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from analysis.run.lines import VERSION
from foundation.files import finite

if TYPE_CHECKING:
    from search_spaces import SearchSpace

Number = Annotated[int, Field(ge=0, lt=2**31)]  # A trial's or an attempt's number

Goal = Annotated[
    Mapping[Annotated[str, Field(pattern="^(maximize|minimize)$")], str],
    Field(min_length=1, max_length=1),
]
"""A metric by the direction in which it is optimized."""

Value = str | int | float | bool | None  # A parameter's value


def _as_given(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """A valid number, not converted: integers stay integers, and no message names a union."""
    validate(value)
    return value


Metric = Annotated[float, WrapValidator(_as_given)]

_LATEST_T = 253_402_300_799.0  # the end of the year 9999, the last that a date can have


def _sparse(default: Any = None) -> Any:
    """A field that is written only if it differs from its default."""
    return Field(default, json_schema_extra={"sparse": True})


class _Event(BaseModel):
    """Base of events: their values are validated, and none is converted."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class Opened(_Event):
    """A driver begins a session."""

    space: str  # its name
    fingerprint: str
    seed: int  # of the proposals
    launcher: str
    nodes: Sequence[str] = ()  # of the allocation
    objective: Goal
    # all of them, the first included, if there are several
    objectives: Sequence[Goal] = _sparse(())
    subject_to: Sequence[str] = _sparse(())  # bounds on measured values
    # of the folder (``id``, ``path``, ``inode``); trials' names carry it
    identity: Mapping[str, str | int] = _sparse({})

    @classmethod
    def of(cls, space: SearchSpace, launcher: str, seed: int = 0, **more: Any) -> Self:
        """A session on a space; ``more`` fields add to the space's own, or replace them."""
        own = {"space": space.name, "fingerprint": space.fingerprint, **space.goals}
        return cls(seed=seed, launcher=launcher, **{**own, **more})


class Proposed(_Event):
    """A configuration was chosen for a new trial."""

    trial: Number
    config: Mapping[str, Value]
    by: str = ""  # what chose it
    why: str = ""  # its reason
    # objective, low, high (95 % interval), fits (probability to run), holds (probability to satisfy
    # the bounds), gain, left, as far as known
    expected: Mapping[str, Metric] = {}


class Started(_Event):
    """An attempt at a trial is about to get its processes."""

    trial: Number
    attempt: Number
    name: str  # of the step or process group
    nodes: Sequence[str]  # that it holds
    repeat: bool = _sparse(False)  # the trial has its result and is measured again


class Ended(_Event):
    """An attempt has ended."""

    trial: Number
    attempt: Number
    kind: str  # how it ended
    objective: Metric | None  # None unless it succeeded
    objectives: Mapping[str, Metric] = _sparse({})  # metrics by key, if several
    bounded: Mapping[str, Metric] = _sparse({})  # metrics that have bounds
    result: Mapping[str, Any] | None = None  # the trainer's; null stands for nan and infinity
    message: str  # one line on the end
    stderr_tail: str = ""
    elapsed_s: float = 0.0  # from start to end
    steps: int | None = _sparse()  # seen in its log; None: not known
    nodes: Sequence[str] = ()  # that it held
    final: bool  # False: the trial will run again, or this was a repeat
    # it ended with its allocation, or nothing could be started; no retry is used up
    excused: bool = _sparse(False)
    early: bool = _sparse(False)  # stopped before its last step because it was too slow
    saved_node_s: float | None = _sparse()  # node-seconds saved by the stop; None unless ``early``


class Closed(_Event):
    """The session ended by itself."""

    reason: str
    code: int | None = _sparse()  # exit code of the driver; None if it had no process of its own
    limit: str | None = _sparse()  # key of the space's ``budget`` section, if that ended it


Event = Opened | Proposed | Started | Ended | Closed
_CLASSES: dict[str, type[Event]] = {
    event.__name__.lower(): event for event in (Opened, Proposed, Started, Ended, Closed)
}


def to_record(event: Event, t: float) -> dict[str, Any]:
    """The journal's record of an event at ``t`` (seconds since the epoch)."""
    record: dict[str, Any] = {"v": VERSION, "t": t, "event": type(event).__name__.lower()}
    for name, field in type(event).model_fields.items():
        value = getattr(event, name)
        if not field.json_schema_extra or value != field.default:
            record[name] = finite(value) if name == "result" else value
    return record


def from_record(record: Mapping[str, Any]) -> Event | None:
    """A record's event, None if of a later version; raises ValueError for a wrong value."""
    name = record.get("event")
    if not isinstance(name, str):
        raise ValueError(f"there is no event {name!r:.60}")
    if name not in _CLASSES:
        return None
    try:
        return _CLASSES[name].model_validate(record)
    except ValidationError as error:
        raise ValueError(f"event {name}: {_first(error)}") from None


def time_of(record: Mapping[str, Any]) -> float:
    """The time of a record, seconds since the epoch; raises ValueError without a valid one."""
    t = record.get("t")
    if type(t) not in (int, float) or not 0 <= t <= _LATEST_T:  # type: ignore[operator]
        raise ValueError(f"t is {t!r:.60}: accepted seconds since the epoch")
    return float(t)  # type: ignore[arg-type]


def _first(error: ValidationError) -> str:
    """The first wrong value, and what is accepted."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"it has no {where}"
    return f"{where} is {first['input']!r:.60}: {first['msg'].lower()}"
