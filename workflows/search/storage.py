"""A full disk: the search waits for room, and no trial is blamed meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from foundation.files import is_disk_full

T = TypeVar("T")

PROBE_BYTES = 64 << 10
_TRY_AGAIN_S = 0.5
_PATIENCE_S = 3.0  # once the search is to stop


class NoRoomError(Exception):
    """The search was stopped while it waited for room; it resumes where its journal ends."""


class Storage:
    """Writes that wait while the disk is full, ``_PATIENCE_S`` if the search is ``stopping``."""

    def __init__(self, tell: Callable[[str], None], stopping: Callable[[], bool]) -> None:
        self._tell, self._stopping = tell, stopping

    def insist(self, write: Callable[[], T]) -> T:
        """Repeat ``write``, which is all or nothing, until the disk has room; return its result.

        Raises:
            NoRoomError: if the disk is full and the search is to stop.
            OSError: for any other reason.
        """
        waits, stops_s = False, None
        while True:
            try:
                result = write()
                break
            except OSError as error:
                if not is_disk_full(error):
                    raise
                if not waits:
                    self._tell(f"the disk is full, the search waits: {error}")
                waits = True
                if self._stopping():
                    stops_s = stops_s or time.monotonic()
                    if time.monotonic() - stops_s > _PATIENCE_S:
                        raise NoRoomError(
                            f"no room to write what has happened: {error}; make room there, and "
                            "run the same command"
                        ) from None
                time.sleep(_TRY_AGAIN_S)
        if waits:
            self._tell("the disk has room again, the search continues")
        return result


def no_room(directory: Path) -> str:
    """The error if a folder's disk is full; "" otherwise."""
    probe = directory / f".room.{os.getpid()}"
    try:
        try:
            with probe.open("wb", buffering=0) as file:
                file.write(bytes(PROBE_BYTES))
                os.fsync(file.fileno())  # some file systems, and quotas, notice only then
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return str(error.strerror) if is_disk_full(error) else ""
    return ""
