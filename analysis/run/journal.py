"""The append-only journal of a run, written and synced before anything is done.

:mod:`analysis.run.events` has its events, :mod:`analysis.run.lines` its bytes. A driver holds the
run's lock (:mod:`analysis.run.lock`) as long as it has the journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from analysis.run.events import Event, from_record, to_record
from analysis.run.fold import Run, apply, extend
from analysis.run.folder import RunFolder
from analysis.run.lines import Lines, RunError, sealed
from analysis.run.lock import Worker, lock, opened
from foundation.messages import shown
from slurm import Clock


class Journal:
    """Appends events and keeps the folded :class:`~analysis.run.fold.Run` up to date.

    A half-written last line of a killed driver is cut: its event was not acted on. If ``clock``
    (monotonic seconds since the epoch) is behind the journal's last line, time continues from that
    line. Without ``sync`` a crash of the machine may lose lines. ``held`` is the run's lock, if the
    caller has it already; the journal releases it.

    Raises RunBusyError if another process drives this run, RunError if the journal cannot be read
    or written.
    """

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], float] | None = None,
        sync: bool = True,
        held: Worker | None = None,
    ) -> None:
        self._clock = clock or Clock().time
        self._ahead_s = 0.0
        self._sync = sync
        self._path = RunFolder(directory).journal_file
        self._lock: Worker | IO[bytes] = held or lock(directory)
        try:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = opened(self._path, flags, 0o600)
        except BaseException:
            self._lock.close()
            raise
        try:
            self._lines = Lines(self._path)
            self.run = Run(directory)
            extend(self.run, self._lines)
            os.ftruncate(self._file, self._lines.end)
        except BaseException:
            self.close()
            raise
        self._keep_time()

    def clock(self) -> float:
        """Seconds since the epoch, after the journal's last line."""
        return self._clock() + self._ahead_s

    def catch_up(self) -> None:
        """Fold lines that another process has added; RunError if damaged or of another journal."""
        self._check_there()
        extend(self.run, self._lines, self._lines.number)
        if os.fstat(self._file).st_size > self._lines.end:  # half a line of a killed one
            os.ftruncate(self._file, self._lines.end)
        self._keep_time()

    def _keep_time(self) -> None:
        behind_s = self.run.last_t - self.clock()
        if behind_s > 0:
            self._ahead_s += behind_s + 0.001  # strictly after that line

    def write(self, event: Event) -> None:
        """Append one event; on return it is on disk and folded into ``run``.

        Raises ValueError if it cannot be a line, OSError if it cannot be written: the file is as
        before; RunError if the file is not as this driver left it.
        """
        record = to_record(event, self.clock())
        line, checksum = sealed(record, self._lines.last)
        as_read = from_record(record)  # as every later reader will see it
        self._check_alone()
        try:
            _write_all(self._file, line)
            if self._sync:
                os.fsync(self._file)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, self._lines.end)
            raise
        self._lines.added(line, checksum)
        apply(self.run, record["t"], as_read)

    def close(self) -> None:
        os.close(self._file)
        self._lock.close()

    def _check_alone(self) -> None:
        """Raise if a second driver has written; locks do not work on every file system."""
        self._check_there()
        if os.fstat(self._file).st_size != self._lines.end:
            raise RunError(
                f"{shown(self._path)}: something else has written to it, perhaps a second search: "
                "end that, then start this one again"
            )

    def _check_there(self) -> None:
        with suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(self._file)):
                return
        raise RunError(f"{shown(self._path)}: was removed or moved while its search was running")


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
