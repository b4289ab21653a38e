"""The append-only journal of a run: written before anything is done, synced before it counts.

What a line can say is in :mod:`analysis.run.events`. A driver holds the run's lock for as
long as it lives, so two drivers never share a run; the lock dies with its process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from analysis.run.events import Event, from_record, to_record
from analysis.run.fold import Run, apply, read_run
from analysis.run.folder import RunFolder
from slurm import Clock

LOCK_NAME = "driver.lock"
LOCK_ATTEMPTS = 10  # within half a second


class RunBusyError(Exception):
    """Another driver is running this run; the message says where."""


class Journal:
    """Appends events and keeps the folded :class:`~analysis.run.fold.Run` up to date.

    Args:
        directory: the run's folder; it must exist.
        clock: seconds since the epoch, going on steadily; a virtual cluster brings its own. Where
            it is behind the journal's last line, time goes on from that.
        sync: False: a line counts when the kernel has it; a crash of the machine may lose some.

    Raises:
        RunBusyError: if another process drives this run.
        RunError: if the journal on disk cannot be read.
    """

    def __init__(
        self, directory: Path, clock: Callable[[], float] | None = None, sync: bool = True
    ) -> None:
        clock_s = clock or Clock().time
        self._sync = sync
        self._lock = lock(directory)
        path = RunFolder(directory).journal_file
        path.touch(mode=0o600)  # a trial's last words may hold anything
        self._file = path.open("ab", buffering=0)
        _cut_torn_line(path)
        self.run: Run = read_run(directory)
        behind_s = self.run.last_t - clock_s()
        ahead_s = behind_s + 0.001 if behind_s > 0 else 0.0  # after that line, not with it
        self.clock: Callable[[], float] = lambda: clock_s() + ahead_s

    def write(self, event: Event) -> None:
        """Append one event; on return it is on disk and folded into ``run``.

        Raises:
            OSError: if it cannot be written; nothing of it is left.
        """
        record = to_record(event, self.clock())
        # allow_nan=False: NaN is not JSON, and no other reader would take the line.
        line = json.dumps(record, allow_nan=False) + "\n"
        end = os.fstat(self._file.fileno()).st_size
        try:
            rest = line.encode()
            while rest:
                rest = rest[self._file.write(rest) :]
            if self._sync:
                os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), end)
            raise
        apply(self.run, record["t"], from_record(record))  # as any other reader would

    def close(self) -> None:
        """Give up the lock."""
        self._file.close()
        self._lock.close()


def driver_of(directory: Path) -> str | None:
    """``HOST pid PID`` of the driver that holds this run now, or None."""
    path = directory / LOCK_NAME
    if not path.exists():
        return None
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return None if error.errno in _NO_LOCKS else file.read().strip()
    return None


# A file system without locks (some Lustre mounts) must not forbid the search.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


def lock(directory: Path) -> IO[str]:
    """Hold a folder for this process alone, until the file is closed or the process ends.

    Raises:
        RunBusyError: if another process holds it.
    """
    # A file of its own: closing any other handle of a locked file may drop the lock (POSIX locks,
    # and so flock over NFS), and the journal is opened by every reader.
    file = (directory / LOCK_NAME).open("a+")
    try:
        _try_lock(file)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise RunBusyError(
                f"{directory} is being searched by another meshtune ({holder}); "
                f"`meshtune status {directory}` shows it"
            ) from error
    file.truncate(0)
    file.write(f"{socket.gethostname()} pid {os.getpid()}")
    file.flush()
    return file


def _try_lock(file: IO[str]) -> None:
    """Lock exclusively; ``meshtune status`` may hold the lock for a moment to see who does."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == LOCK_ATTEMPTS - 1:
                raise
            time.sleep(0.05)


def _cut_torn_line(path: Path) -> None:
    """Remove what a killed driver left of its last write; it had not been acted upon."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)
