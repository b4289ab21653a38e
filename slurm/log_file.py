"""A log file that survives a full disk, and its own removal."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

MAX_WAITING = 4 << 20  # bytes; no more of a log is read
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
LAST_TRIES_S = 2.0  # to retry writing to a full disk when all writers are gone


class LogFile:
    """Appends to a file; if the disk is full, text waits for the next write.

    So a trial neither ends nor blocks while the disk is full. Beyond :data:`MAX_WAITING` bytes the
    oldest lines are lost, and the log says so. If somebody removes the file or moves it away, the
    log goes on in a new one: a result that is printed last is found.

    Raises OSError if it cannot be opened, or is a link, which may lead to another file of the user.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, _FLAGS, 0o644)
        self._waiting = b""
        self._lost = 0
        self._error = ""

    @property
    def problem(self) -> str:
        """Why the file is incomplete; "" if it is complete."""
        return f"{self._path.name}: {self._error}" if self._waiting or self._lost else ""

    def write(self, text: bytes) -> None:
        """Append whole lines, or keep them for a later write; never raises OSError."""
        self._waiting += text
        self.retry()

    def retry(self) -> None:
        """Write waiting text, as far as that is possible."""
        if self._waiting and not os.path.lexists(self._path):
            with contextlib.suppress(OSError):  # the folder is gone, too
                again = os.open(self._path, _FLAGS | os.O_EXCL, 0o644)
                os.close(self._file)
                self._file = again
        try:
            while self._waiting:
                self._waiting = self._waiting[os.write(self._file, self._waiting) :]
        except OSError as error:
            self._error = error.strerror or str(error)
            self._shorten()

    def close(self, patience_s: float = 0.0) -> None:
        """Write waiting text, with retries for ``patience_s``, and close the file."""
        deadline = time.monotonic() + patience_s
        self.retry()
        while self._waiting and time.monotonic() < deadline:
            time.sleep(0.1)
            self.retry()
        with contextlib.suppress(OSError):  # some file systems report a failed write only here
            os.close(self._file)

    def _shorten(self) -> None:
        excess = len(self._waiting) - MAX_WAITING
        if excess <= 0:
            return
        # Drop half at once, or every further line would copy all of them.
        cut = self._waiting.find(b"\n", excess + MAX_WAITING // 2) + 1 or len(self._waiting)
        self._lost += cut
        note = f"\nmeshtune: {self._lost} bytes are lost: {self._error}\n".encode()
        self._waiting = note + self._waiting[cut:]
