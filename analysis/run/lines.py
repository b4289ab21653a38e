"""A journal's lines as bytes: each has a checksum and names the line before it.

A line is one JSON object, whose last two keys seal it::

    {"v": 2, "t": 17.5, "event": "closed", "reason": "...", "after": "1c291ca3", "crc": "9fe2b1d4"}

``crc`` is the CRC-32 of all bytes before it, so a changed byte costs one line and no other.
``after`` is the ``crc`` of the line before, so removed, repeated and moved lines are found, and two
drivers' lines can be told apart. Later versions keep both keys.
"""

from __future__ import annotations

import json
import re
import shlex
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from foundation.files import FileError, MissingFileError, open_regular, refuse_constant
from foundation.messages import shown

VERSION = 2
FIRST = "00000000"  # ``after`` of the first line
MAX_LINE_BYTES = 16 << 20

_BEGIN = re.compile(rb'\{"v": ')
_SEAL = re.compile(rb', "crc": "([0-9a-f]{8})"\}')
_SEAL_BYTES = 20
_MAX_TRIES = 100  # false beginnings of a line in one damaged stretch


class RunError(Exception):
    """A run folder that cannot be read; the message names the file, the line and the remedy."""


class DamagedLineError(ValueError):
    """A line is not as it was written; the message says why."""


class LaterVersionError(ValueError):
    """A line of a later version of meshtune."""


def damaged(path: Path, number: int, why: object) -> RunError:
    """A reader's error at a damaged line."""
    run = shlex.quote(shown(path.parent))
    return RunError(
        f"{shown(path)}:{number}: {why}; `meshtune repair {run}` keeps what is sound and says what "
        "it leaves out"
    )


def sealed(record: Mapping[str, Any], after: str) -> tuple[bytes, str]:
    """A record's line, with its newline, and its checksum; ``after`` is that of the line before.

    Raises ValueError if a value is not JSON, such as NaN, or the line is too long.
    """
    # allow_nan=False: other JSON readers would refuse the line.
    body = json.dumps({**record, "after": after}, allow_nan=False)[:-1].encode()
    crc = checksum(body)
    line = body + f', "crc": "{crc}"}}\n'.encode()
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"{len(line):,} bytes, of which a line holds {MAX_LINE_BYTES:,}")
    return line, crc


def unsealed(line: bytes) -> tuple[dict[str, Any], str]:
    """The record of a line without its newline, and the line's checksum.

    Raises DamagedLineError if it is not as it was written, or LaterVersionError.
    """
    seal = _SEAL.fullmatch(line[-_SEAL_BYTES:])
    crc = checksum(line[:-_SEAL_BYTES])
    if seal and crc != seal[1].decode():
        raise DamagedLineError("its checksum does not fit: bytes of it have changed")
    try:
        record = _DECODER.decode(line.decode())
    except json.JSONDecodeError as error:
        raise DamagedLineError(f"it is not JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise DamagedLineError(f"it is not JSON ({error})") from None
    version = record.get("v") if isinstance(record, dict) else None
    if seal and type(version) is int and version > VERSION:
        raise LaterVersionError(
            f"journal version {version}, this meshtune reads up to {VERSION}: update meshtune"
        )
    if type(version) is not int:
        raise DamagedLineError("it is not a line of a journal")
    if version < VERSION:
        raise DamagedLineError(f"it is of journal version {version}, which is no longer read")
    if not seal:
        raise DamagedLineError(f"it is of journal version {version}, and has no checksum")
    return record, crc


def checksum(data: bytes) -> str:
    """CRC-32, as eight hexadecimal digits."""
    return f"{zlib.crc32(data):08x}"


def sound_within(data: bytes) -> Iterator[bytes]:
    """Intact sealed lines, without newlines, within damaged bytes.

    Lines on both sides of a missing newline are intact, and so is a line after a half-written one.
    """
    end, tries = 0, 0
    for begin in _BEGIN.finditer(data):
        if begin.start() < end or tries == _MAX_TRIES:
            continue
        whole = _sealed_end(data, begin.start())
        if whole:
            yield data[begin.start() : whole]
        end, tries = whole or end, tries + (not whole)


def check_torn(line: bytes) -> None:
    """Raise DamagedLineError for a last line that is not just a half-written one."""
    if len(line) >= MAX_LINE_BYTES:
        raise DamagedLineError(f"it is longer than {MAX_LINE_BYTES:,} bytes")
    end = _sealed_end(line, 0)
    if end and end < len(line):
        raise DamagedLineError("it does not end where it was ended")


class Lines:
    """The records of a journal, in order.

    After an iteration ``end`` and ``last`` say where the next line belongs; the next iteration
    yields the lines that were added since.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0  # of the latest line
        self.end = 0  # of the latest whole line, in bytes
        self.last = FIRST  # its checksum

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the record of each line; a half-written last one, of a killed driver, is skipped.

        Raises RunError at any other damaged line.
        """
        try:
            with open_regular(self.path) as file:
                file.seek(self.end)
                for line in raw_lines(file):
                    if not line.endswith(b"\n"):
                        check_torn(line)
                        return
                    yield self._record(line)
        except DamagedLineError as error:
            raise damaged(self.path, self.number + 1, error) from None
        except LaterVersionError as error:
            raise RunError(f"{shown(self.path)}:{self.number + 1}: {error}") from None
        except MissingFileError as error:
            raise RunError(f"{error}; a run folder holds a journal.jsonl") from None
        except FileError as error:
            raise RunError(str(error)) from None
        except OSError as error:
            raise RunError(f"{shown(self.path)}: cannot be read: {error.strerror}") from None

    def _record(self, line: bytes) -> dict[str, Any]:
        record, crc = unsealed(line[:-1])
        if record.get("after") != self.last:
            raise DamagedLineError(
                "it does not follow the line before it: lines were removed, repeated or moved, or "
                "two drivers wrote here"
            )
        self.added(line, crc)
        return record

    def added(self, line: bytes, crc: str) -> None:
        """Count a whole line at ``end``: one that was read, or that the caller has written."""
        self.number += 1
        self.last = crc
        self.end += len(line)


def raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with newlines, which the last one may lack; too long ones in pieces."""
    return iter(lambda: file.readline(MAX_LINE_BYTES), b"")


def _sealed_end(data: bytes, begin: int) -> int | None:
    """End of the sealed line that begins at ``begin``; None if there is none."""
    crc, done = 0, begin
    for seal in _SEAL.finditer(data, begin):
        crc = zlib.crc32(data[done : seal.start()], crc)
        done = seal.start()
        if f"{crc:08x}" == seal[1].decode():
            return seal.end()
    return None


_DECODER = json.JSONDecoder(parse_constant=refuse_constant)
