"""One log file for many writers, in which every line is whole.

Processes that append to one file themselves interleave within lines, as an unbuffered Python writes
a line and its end separately: a torn result could not be read.
"""

from __future__ import annotations

import os
from pathlib import Path

from slurm.log_file import LAST_TRIES_S, LogFile, whole_lines

_READS_AT_ONCE = 16  # so that a rank which never stops writing delays neither others nor orders


class LineLog:
    """Appends the lines of several writers to a file."""

    def __init__(self, path: Path) -> None:
        self.file = LogFile(path)  # lines that wait for room on the disk: ``pump`` tries again
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

    def pump(self) -> None:
        """Write the lines that are there now; does not block."""
        self.file.retry()
        for read_end in self.read_ends:
            for _ in range(_READS_AT_ONCE):
                data = self._read(read_end)
                if data is None:
                    break
                if not data:
                    self._finish(read_end)
                    break
                text = self._partial[read_end] + data
                end = whole_lines(text)
                self.file.write(text[:end])
                self._partial[read_end] = text[end:]

    def close(self) -> None:
        """Write the open lines, too, and close the file."""
        self.pump()
        for read_end in self.read_ends:
            self._finish(read_end)
        self.file.close(LAST_TRIES_S)

    def _finish(self, read_end: int) -> None:
        if text := self._partial.pop(read_end):
            self.file.write(text + b"\n")  # or the next writer's line would continue it
        os.close(read_end)

    def _read(self, read_end: int) -> bytes | None:
        try:
            return os.read(read_end, 65536)
        except BlockingIOError:
            return None
