"""Checks of values that a program hands to the Python API."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foundation.messages import shown

LARGEST = 2**53  # whole number: JSON readers round larger ones
_LONGEST_PATH = 4096


class ArgumentError(ValueError, TypeError):
    """An unusable argument; the message has its name, its value and what is accepted."""


def refused(name: str, value: Any, accepted: str) -> ArgumentError:
    """The error for a value, which it shows in one line, shortened."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # a huge integer, or a class whose repr fails
        words = f"a {type(value).__name__}"
    return ArgumentError(f"{name}={shown(words, 80)}: accepted {accepted}")


def checked_whole(name: str, value: Any, least: int) -> int:
    """A whole number of at least ``least``, numpy's too; true and false are refused."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= LARGEST:
        raise refused(name, value, f"a whole number of {least} or more")
    return number


def checked_text(name: str, value: Any, accepted: str = "a text") -> str:
    """A text, which may be empty."""
    if not isinstance(value, str):
        raise refused(name, value, accepted)
    return value


def checked_path(name: str, value: Any) -> Path:
    """A path that a file system accepts; the file need not exist."""
    usable = isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str)
    where = os.fspath(value) if usable else ""
    if not where or "\0" in where or len(os.fsencode(where)) > _LONGEST_PATH:
        raise refused(name, value, "a path")
    return Path(where)


def checked_columns(name: str, values: Any, known: Iterable[Any]) -> list[Any]:
    """One name, or several, as a list of columns, all of which must be ``known``."""
    known = list(known)
    wanted = [values] if isinstance(values, str) else values
    try:
        wanted = list(wanted)
        missing = [column for column in wanted if column not in known]
    except TypeError:
        missing = [values]
    if missing:
        there = ", ".join(shown(str(column), 40) for column in known[:20])
        raise refused(name, missing[0], f"columns of the table, which has {there or 'none'}")
    return wanted
