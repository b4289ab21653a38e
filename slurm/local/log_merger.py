"""One log file for many writers, in which every line is whole.

Processes that append to one file themselves interleave within lines, as an unbuffered Python writes
a line and its end separately: a torn result could not be read.
"""

from __future__ import annotations

import os
from pathlib import Path

from slurm.log_file import LogFile

_LONGEST_LINE_BYTES = 1 << 20  # longer lines are passed on in pieces
_READS_AT_ONCE = 16  # so that a rank which never stops writing delays neither others nor orders
_LAST_TRIES_S = 2.0  # to write what a full disk does not take when all writers are gone


class LineLog:
    """Appends the lines of several writers to a file."""

    def __init__(self, path: Path) -> None:
        self._file = LogFile(path)
        self._partial: dict[int, bytes] = {}  # read end of each open pipe -> line so far

    def open_writer(self) -> int:
        """A file descriptor to write to; close it where it is not used."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        self._partial[read_end] = b""
        return write_end

    @property
    def read_ends(self) -> list[int]:
        """Descriptors to wait for until one is readable."""
        return list(self._partial)

    @property
    def waiting(self) -> bool:
        """Whether lines wait for room on the disk; ``pump`` tries again."""
        return self._file.waiting

    @property
    def problem(self) -> str:
        """Why lines are missing in the file; "" if none are."""
        return self._file.problem

    def pump(self) -> None:
        """Write the lines that are there now; does not block."""
        self._file.retry()
        for read_end in self.read_ends:
            for _ in range(_READS_AT_ONCE):
                data = self._read(read_end)
                if data is None:
                    break
                if not data:
                    self._finish(read_end)
                    break
                # A progress bar ends its lines by a carriage return.
                text = self._partial[read_end] + data
                end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
                if len(text) - end > _LONGEST_LINE_BYTES:
                    end = len(text)
                self._file.write(text[:end])
                self._partial[read_end] = text[end:]

    def close(self) -> None:
        """Write the open lines, too, and close the file."""
        self.pump()
        for read_end in self.read_ends:
            self._finish(read_end)
        self._file.close(_LAST_TRIES_S)

    def _finish(self, read_end: int) -> None:
        if text := self._partial.pop(read_end):
            self._file.write(text + b"\n")  # or the next writer's line would continue it
        os.close(read_end)

    def _read(self, read_end: int) -> bytes | None:
        try:
            return os.read(read_end, 65536)
        except BlockingIOError:
            return None
