"""Standard output that may lose its reader: the search continues without it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import IO, Any

# A full disk may be emptied, a slow reader may catch up.
_FOR_A_WHILE = (errno.ENOSPC, errno.EDQUOT, errno.EAGAIN)


class Screen:
    """A text file whose write errors are not raised.

    After a temporary one (a full disk) the text is written later; once the reader is gone
    (``| head -1``), output is discarded, and standard error says so.
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
        """Write or discard buffered text: the interpreter's own last flush must not fail."""
        try:
            self._file.flush()
        except OSError:
            self._discard()

    def _note(self, error: OSError) -> None:
        if error.errno in _FOR_A_WHILE:
            return
        self._discard()
        with contextlib.suppress(OSError):
            print(f"meshtune: {error.strerror}: continuing without output", file=sys.stderr)

    def _discard(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError):  # it has no file descriptor
            os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
