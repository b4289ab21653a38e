"""Reading what the trainer is given: regular files only, of bounded size and depth."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

MAX_JSON_BYTES = 1_000_000
_MAX_MISTAKES = 7
_MAX_SHOWN = 100


class FileError(ValueError):
    """A file is not what it should be; the message names it."""


def size_of(path: Path) -> int:
    """Bytes of a regular file. A pipe would block who opens it, a device need never end.

    Raises:
        FileError: if it is something else, or there is none.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise FileError(f"{shown(str(path))}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the name
        raise FileError(f"{shown(str(path))}: not a file name: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{path}: found a folder, pipe or device, accepted a file")
    return status.st_size


def read_json(path: Path) -> Any:
    """What a JSON file says; raises FileError."""
    size_of(path)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_JSON_BYTES:
        raise FileError(f"{path}: found more than the {MAX_JSON_BYTES:,} bytes that are accepted")
    try:
        return json.loads(data, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise FileError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # no UTF-8, thousands of digits, of brackets
        raise FileError(f"{path}: not JSON: {error}") from None


def mistakes(error: ValidationError) -> str:
    """The first ones of pydantic's findings, in a line."""
    found = [
        f"{shown('.'.join(map(str, e['loc']))) or 'config'}: {e['msg']} "
        f"(found {shown(repr(e['input']))})"
        for e in error.errors(include_url=False)
    ]
    more = [f"and {len(found) - _MAX_MISTAKES} more"] if len(found) > _MAX_MISTAKES else []
    return "; ".join([*found[:_MAX_MISTAKES], *more])


def shown(text: str) -> str:
    """Text for a message: without control characters, and not longer than it helps."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    half = _MAX_SHOWN // 2
    return text if len(text) <= _MAX_SHOWN else f"{text[:half]}...{text[-half:]}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
