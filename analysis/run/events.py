"""The journal's events: what a line of ``journal.jsonl`` can say, as it is written and read.

Every line is one JSON object with ``v`` (schema version), ``t`` (seconds since the epoch),
``event`` (a class of this module, in lower case) and the fields of that class in their order. A
field of :func:`_sparse` is left out where it says nothing. Whatever has a default may be missing
in journals of older versions; events and keys that are not known here are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

JOURNAL_VERSION = 1


class RunError(Exception):
    """A run folder that cannot be read; the message names the file, the line and the remedy."""


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
    objective: Mapping[str, str]
    objectives: Sequence[Mapping[str, str]] = _sparse(())
    identity: Mapping[str, Any] = _sparse(default_factory=dict)


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

    trial: int
    config: Mapping[str, Any]
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

    trial: int
    attempt: int
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
        nodes: that it held.
        final: False: the trial will run again, or this was a repeat.
        excused: it ended with its allocation, or as nothing could be started: no retry is counted.
        early: stopped before its last step, as it was too slow.
        saved_node_s: node-seconds that the stop has saved; None unless ``early``.
    """

    trial: int
    attempt: int
    kind: str
    objective: float | None
    objectives: Mapping[str, float] = _sparse(default_factory=dict)
    result: Mapping[str, Any] | None = None
    message: str
    stderr_tail: str = ""
    elapsed_s: float = 0.0
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
    """

    reason: str


Event = Opened | Proposed | Started | Ended | Closed
_CLASSES: dict[str, type[Event]] = {
    event.__name__.lower(): event for event in (Opened, Proposed, Started, Ended, Closed)
}


def to_record(event: Event, t: float) -> dict[str, Any]:
    """The journal's line for an event at ``t`` (seconds since the epoch)."""
    record: dict[str, Any] = {"v": JOURNAL_VERSION, "t": t, "event": type(event).__name__.lower()}
    for each in fields(event):
        value = getattr(event, each.name)
        if not each.metadata.get("sparse") or value != _default(each):
            record[each.name] = _finite(value) if each.name == "result" else value
    return record


def from_record(record: Mapping[str, Any]) -> Event | None:
    """The event of a line; None for one that this version does not know.

    Raises:
        KeyError: if a key is missing that every version writes.
    """
    event = _CLASSES.get(record["event"])
    if event is None:
        return None
    known = {}
    for each in fields(event):
        required = each.default is MISSING and each.default_factory is MISSING
        if required or each.name in record:
            known[each.name] = record[each.name]
    return event(**known)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal in order.

    A last line without its newline is what a killed driver leaves of a write: it is skipped.

    Raises:
        RunError: at any other line that cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; a run folder holds a journal.jsonl") from error
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            version = record["v"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}:{number}: not a journal line ({error}); restore or remove it"
            ) from error
        if version != JOURNAL_VERSION:
            raise RunError(
                f"{path}:{number}: journal version {version}, this meshtune reads {JOURNAL_VERSION}"
            )
        yield record


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
