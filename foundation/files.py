"""Guarded reading of files that users and trainers wrote.

A FIFO would block for ever, a device need never end, and a file may be of any size, depth or
encoding. Readers raise :class:`MissingFileError` if there is no such file, and :class:`FileError`
if it is something else or cannot be read; the message is one line that begins with the file's name.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeGuard

from foundation.messages import shown

MAX_JSON_BYTES = 1_000_000
MAX_JSON_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_JSON_DEPTH} levels"
_WRITABLE = "choose a path that you may read and write"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there, and run the same command"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _WRITABLE),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise `ulimit -n`, and run the same command"),
    **dict.fromkeys(
        (errno.ESTALE, errno.EIO, errno.ENOLCK),
        "its file system does not answer as it should: see whether it is mounted, and run the same "
        "command",
    ),
    errno.ENOENT: "make the folder that is to hold it",
    errno.EADDRINUSE: "choose another port",
}


class FileError(ValueError):
    """A file is not what it should be; the message says what was found and what is accepted."""


class MissingFileError(FileError):
    """There is no such file."""


def read_bytes(path: Path, most: int) -> bytes:
    """All of a regular file; raises FileError if it has more than ``most`` bytes."""
    data = read_from(path, 0, most + 1)
    if len(data) > most:
        raise FileError(f"{shown(path)}: larger than the {most:,} bytes that are accepted")
    return data


def read_end(path: Path, most: int) -> bytes:
    """At most the last ``most`` bytes of a log; refuses links, which may lead anywhere."""
    return read_from(path, -most, most, follow=False)


def read_from(path: Path, start: int, most: int, *, follow: bool = True) -> bytes:
    """At most ``most`` bytes of a regular file from ``start`` on; negative: from its end."""
    with open_regular(path, follow=follow) as file:
        try:
            file.seek(start if start >= 0 else max(0, os.fstat(file.fileno()).st_size + start))
            return file.read(most)
        except OSError as error:
            raise FileError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None


def read_text(path: Path, most: int) -> str:
    """A regular file of at most ``most`` bytes of UTF-8, with or without a byte-order mark."""
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


def size_of(path: Path) -> int:
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def read_json(path: Path, most: int = MAX_JSON_BYTES) -> Any:
    """The content of a JSON file of at most ``most`` bytes, without NaN and infinity."""
    return parse_json(read_bytes(path, most), shown(path), finite=True)


def parse_json(text: str | bytes, name: str, *, finite: bool = False) -> Any:
    """Parse JSON that is at most :data:`MAX_JSON_DEPTH` deep.

    ``name`` is that of the file or line, for messages; ``finite`` refuses NaN and infinity, which
    Python writes and JSON does not know.

    Raises FileError if it is not JSON, nested deeper, or has a number of thousands of digits.
    """
    try:
        value = json.loads(text, parse_constant=refuse_constant if finite else None)
    except json.JSONDecodeError as error:
        raise FileError(f"{name}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise FileError(f"{name}: {TOO_DEEP}") from None
    except ValueError as error:  # an integer of too many digits, or bytes that are no UTF-8
        raise FileError(f"{name}: not JSON: {error}") from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_JSON_DEPTH + 1:
            raise FileError(f"{name}: {TOO_DEEP}")
        level = [
            child
            for each in level
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return value


def machine_numbers(value: Any) -> Any:
    """A JSON value in which integers of more than 64 bits are floats, possibly infinite."""
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


def finite(value: Any) -> Any:
    """A value in JSON's types: None for NaN and infinity, plain numbers for numpy's."""
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    if hasattr(value, "item"):  # numpy's
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value of JSON is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that a file system, or a quota on it, has no room left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def explained(error: OSError | ImportError) -> str:
    """``PATH: MESSAGE; REMEDY`` of an error, as far as they are known."""
    if isinstance(error, ImportError):
        return (
            f"{error}; if meshtune is installed as a whole, the file system that it is on does not "
            "answer as it should: run the same command"
        )
    path = f"{shown(os.fsdecode(error.filename))}: " if error.filename is not None else ""
    remedy = _REMEDIES.get(error.errno or 0, "")
    return f"{path}{error.strerror or error}{remedy and f'; {remedy}'}"


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file, or with ``follow`` the one that a link leads to, to read its bytes."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        # Checked first, as opening a device may have an effect.
        _check_regular(path, path.stat(follow_symlinks=follow))
        file = os.fdopen(os.open(path, flags), "rb")
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


def _check_regular(path: Path, status: os.stat_result) -> None:
    mode = status.st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFLNK: "link"}
        kind = kinds.get(stat.S_IFMT(mode), "device")
        raise FileError(f"{shown(path)}: found a {kind}, accepted a file")


def refuse_constant(constant: str) -> NoReturn:
    """Refuse NaN and infinity: ``json``'s ``parse_constant``."""
    raise ValueError(f"{constant} is not a number of JSON")
