"""Known trainers: the habits of frameworks and the formats of logs, each read from its record."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Generic, TypeVar

from foundation.documents import read_document
from foundation.records import validate
from search_spaces.errors import SpaceError
from search_spaces.frameworks import Framework, StatedHabits
from search_spaces.language.adapter_schema import AdapterFile, KnownTrainer
from search_spaces.language.log_schema import TOKEN_FACTS, ResultPatterns
from search_spaces.shipped import known_file, known_trainers
from slurm.logs.patterns import LogFormat

T = TypeVar("T")
FORMER_NAMES = {"megatron-bridge-26.06": "megatron-bridge"}  # in files of earlier versions


class _ReadOnce(UserDict[str, T], Generic[T]):
    """A value per name, computed at the first access."""

    def __init__(self, names: tuple[str, ...], read: Callable[[str], T]) -> None:
        super().__init__()
        self.data = dict.fromkeys(names)  # type: ignore[assignment]
        self._read = read

    def __getitem__(self, name: str) -> T:
        value: T | None = self.data[name]
        if value is None:
            value = self.data[name] = self._read(name)
        return value


def _framework(name: str) -> Framework:
    habits = record(name).habits
    assert habits is not None  # the name was listed for having them
    return Framework(name=name, **dict(habits))


def _log_format(name: str) -> LogFormat:
    log = record(name).log
    if isinstance(log, str):
        return LOG_FORMATS[log]
    assert log is not None  # the name was listed for having one
    return log_format(log.resolved(LOG_FORMATS))


def record(name: str) -> KnownTrainer:
    document = read_document(known_file(name), SpaceError)
    is_adapter = "command" in document.root.value
    return validate(AdapterFile if is_adapter else KnownTrainer, document)


FRAMEWORKS = _ReadOnce(known_trainers("habits"), _framework)
"""Habits of known frameworks, by name."""
LOG_FORMATS = _ReadOnce(known_trainers("log"), _log_format)
"""Formats of the logs of known trainers, by name."""


def framework_named(named: str | StatedHabits) -> Framework:
    """The habits of a framework; for an unknown one, those of most frameworks."""
    if isinstance(named, StatedHabits):
        own = named.stated
        return framework_named(named.base).with_habits(stated=frozenset(own), **own)
    return FRAMEWORKS.get(FORMER_NAMES.get(named, named)) or Framework(name=named)


def log_format(result: ResultPatterns | None, stated: str | None = None) -> LogFormat:
    """The format by which metrics are read from logs; without patterns, none is read.

    ``stated`` are the trainer's arguments and files: if they lack a record's ``real_if``, its
    tokens count as padded, and patterns whose ``only_if`` they lack are left out.
    """
    if result is None:
        return LogFormat()
    base = LOG_FORMATS[result.format] if result.format else LogFormat()
    patterns = {
        key: kept
        for key, every in base.patterns.items()
        if (kept := [one for one in every if stated is None or one.only_if in stated])
    }
    if stated is not None and base.real_if not in stated:
        patterns = {f"padded_{k}" if k.startswith("tokens") else k: v for k, v in patterns.items()}
    return LogFormat(
        patterns=patterns | result.own_patterns(),
        pauses=base.pauses if result.pauses is None else result.pauses,
        **{key: getattr(result, key) or getattr(base, key) for key in TOKEN_FACTS},
    )
