"""Reading files that people and trainers wrote, with distrust.

A FIFO would block for ever, a device need never end, and a file may be of any size, depth or
encoding. What cannot be read is a :class:`FileError`, whose message is one line and begins with
the file's name.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from slurm.terminal import printable

MAX_JSON_DEPTH = 64
ROOM_BYTES = 64 << 10  # that a file system with room has left
_USER = re.compile(r"(?<=://)[^/:@\s]*(?::[^@\s]*)?@(?:[^/@\s]*@)*")  # and password, of a URL
_SECRET = re.compile(r"([?&]\w*(?:password|passwd|pwd|token|secret|key)=)[^&\s]*", re.IGNORECASE)


class FileError(ValueError):
    """A file is not what it should be; the message says what was found and what is accepted."""


class MissingFileError(FileError):
    """There is no such file."""


def read_bytes(path: Path, most: int) -> bytes:
    """All of a regular file of at most ``most`` bytes.

    Raises:
        MissingFileError: if there is none.
        FileError: if it is something else, larger, or cannot be read.
    """
    data = _read(path, most + 1)
    if len(data) > most:
        raise FileError(f"{shown(path)}: larger than the {most:,} bytes that are accepted")
    return data


def read_end(path: Path, most: int) -> bytes:
    """The last ``most`` bytes of a regular file; all of a shorter one.

    Raises:
        MissingFileError: if there is none.
        FileError: if it is something else, or cannot be read.
    """
    return _read(path, most, start=-most)


def read_from(path: Path, start: int, most: int) -> bytes:
    """At most ``most`` bytes of a regular file from byte ``start`` on.

    Raises:
        MissingFileError: if there is none.
        FileError: if it is something else, or cannot be read.
    """
    return _read(path, most, start=start)


def read_text(path: Path, most: int) -> str:
    """A regular file of at most ``most`` bytes of UTF-8, with or without a byte-order mark.

    Raises:
        MissingFileError: if there is none.
        FileError: if it is something else, larger, or not such text.
    """
    data = read_bytes(path, most)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(
            f"{shown(path)}:{line}: found byte 0x{data[error.start]:02x} at offset {error.start}, "
            "accepted UTF-8 text; save the file as UTF-8"
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise FileError(f"{shown(path)}:{line}: found a NUL character, accepted text")
    return text


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse JSON that is at most :data:`MAX_JSON_DEPTH` deep.

    Args:
        text: what is parsed.
        name: of the file or line, for messages.

    Raises:
        FileError: if it is no JSON, deeper, or has a number of thousands of digits.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise FileError(f"{name}: nested deeper than {MAX_JSON_DEPTH} levels") from None
    except ValueError as error:  # an integer of too many digits, or bytes that are no UTF-8
        raise FileError(f"{name}: not JSON: {error}") from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_JSON_DEPTH + 1:
            raise FileError(f"{name}: nested deeper than {MAX_JSON_DEPTH} levels")
        level = [
            child
            for each in level
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return value


def machine_numbers(value: Any) -> Any:
    """A value of JSON with floats, maybe infinite, in place of integers of more than 64 bits."""
    if isinstance(value, dict):
        return {k: machine_numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [machine_numbers(v) for v in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def has_room(path: Path) -> bool:
    """Whether the file system of a path has some; yes where it does not say, as of a quota."""
    try:
        status = os.statvfs(path)
    except OSError:
        return True
    return status.f_bavail * status.f_frsize >= ROOM_BYTES or status.f_blocks == 0


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a file system, or a quota on it, has no room left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_private(path: Path, text: str) -> None:
    """Write a file that, if it is new, only its owner may read: a trial's environment is in it."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def without_secrets(text: str) -> str:
    """A URL, or a text with some, without user, password and what its query keeps secret.

    >>> without_secrets("postgresql://me:hush@host/db?sslpassword=hush")
    'postgresql://***@host/db?sslpassword=***'
    """
    if "://" not in text:
        return text
    return _SECRET.sub(r"\1***", _USER.sub("***@", text))


def shown(path: Path | str, most: int = 200) -> str:
    """A file's name, or a URL, for a message.

    It has no control characters and no password, and is not longer than it helps.
    """
    name = printable(without_secrets(str(path))).replace("\n", "\\n").replace("\t", "\\t")
    return name if len(name) <= most else f"{name[: most // 2]}...{name[-most // 2 :]}"


def listed(names: Iterable[object], most: int = 20) -> str:
    """Names for a message, the first ones of many."""
    every = [shown(str(name), 60) for name in names]
    more = [f"and {len(every) - most:,} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])


def message(error: object, lines: int = 10, width: int = 1000) -> str:
    """What a terminal is shown of an error: bounded, and without control characters."""
    every = [shown(line, width) for line in str(error).split("\n")]
    if len(every) > lines:
        every[lines - 1 :] = [f"and {len(every) - lines + 1:,} lines more"]
    return "\n".join(every)


def first_line(error: BaseException) -> str:
    """What another library's error says, in short: of one without a word, its class."""
    lines = str(error).strip().splitlines()
    return without_secrets(lines[0]) if lines else type(error).__name__


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes.

    Raises:
        MissingFileError: if there is none.
        FileError: if it is something else, or cannot be opened.
    """
    try:
        _check_regular(path, path.stat())  # opening a device may already do something
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        try:
            _check_regular(path, os.fstat(file.fileno()))  # it may have been replaced meanwhile
        except FileError:
            file.close()
            raise
        return file
    except FileNotFoundError:
        raise MissingFileError(f"{shown(path)}: there is no such file") from None
    except OSError as error:
        raise FileError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    except FileError:
        raise
    except ValueError as error:  # a NUL in the name
        raise FileError(f"{shown(path)}: not a file name: {error}") from None


def _read(path: Path, most: int, *, start: int = 0) -> bytes:
    """At most ``most`` bytes from ``start`` on, which counts from the end where it is negative."""
    with open_regular(path) as file:
        try:
            file.seek(start if start >= 0 else max(0, os.fstat(file.fileno()).st_size + start))
            return file.read(most)
        except OSError as error:
            raise FileError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None


def _check_regular(path: Path, status: os.stat_result) -> None:
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        kind = "directory" if stat.S_ISDIR(mode) else "pipe" if stat.S_ISFIFO(mode) else "device"
        raise FileError(f"{shown(path)}: found a {kind}, accepted a file")
