"""Standard output that nobody may be reading any more: a search goes on without."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import IO, Any

# A full disk may have room again, a slow reader catch up.
_FOR_A_WHILE = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


class Screen:
    """A text file whose writer never hears of errors.

    What cannot be written for a while comes later; once the reader is gone (``| head -1``, a
    terminal that was closed) nothing is written any more, and standard error says so.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        try:
            self._file.write(text)
        except OSError as error:
            self._note(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            self._note(error)

    def finish(self) -> None:
        """Write what is left, or give it up: the interpreter's own last flush must not fail."""
        try:
            self._file.flush()
        except OSError:
            self._give_up()

    def _note(self, error: OSError) -> None:
        if error.errno in _FOR_A_WHILE:
            return
        self._give_up()
        with contextlib.suppress(OSError):
            print(f"meshtune: {error.strerror}: searching on without output", file=sys.stderr)

    def _give_up(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError):  # no file of the system's
            os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
