"""The lock of a run, held by its driver as long as the process lives.

It is a file of its own: closing any handle of a locked file may drop the lock (POSIX locks, and so
flock over NFS), and every reader opens the journal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from shlex import quote
from typing import IO

from analysis.run.lines import RunError, cannot_write
from foundation.files import FileError, MissingFileError, open_regular
from foundation.messages import shown

LOCK_NAME = "driver.lock"
LOCK_ATTEMPTS = 10  # within half a second
MAX_HOLDER_BYTES = 300

# On file systems without locks (some Lustre mounts) the search runs unlocked.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class RunBusyError(RunError):
    """Another driver is running this run; the message says where."""


def lock(directory: Path) -> IO[bytes]:
    """Lock a folder until the returned file is closed or the process ends.

    Raises RunBusyError if another process holds it, RunError if the lock file cannot be made.
    """
    path = directory / LOCK_NAME
    try:
        if path.exists():
            open_regular(path).close()  # a pipe would block or lock nothing
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.fdopen(os.open(path, flags, 0o666), "r+b")
    except FileError as error:
        raise RunError(f"{error}; remove it") from None
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        _try_lock(file)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            holder = _holder(file)
            file.close()
            raise RunBusyError(
                f"{shown(directory)} is being searched by another meshtune ({holder}); "
                f"`meshtune status {quote(shown(directory))}` shows it"
            ) from error
    file.truncate(0)
    file.write(f"{socket.gethostname()} pid {os.getpid()}".encode())
    file.flush()
    return file


def driver_of(directory: Path) -> str | None:
    """``HOST pid PID`` of the driver that holds this run, or None; RunError if unknown."""
    try:
        with open_regular(directory / LOCK_NAME) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                return None if error.errno in _NO_LOCKS else _holder(file)
    except MissingFileError:
        pass
    except FileError as error:
        raise RunError(f"{error}: nobody can tell whether a search is running") from None
    return None


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    said = file.read(MAX_HOLDER_BYTES).decode(errors="replace").strip()
    return shown(said) or "it does not say where"


def _try_lock(file: IO[bytes]) -> None:
    """Lock exclusively, with retries: ``meshtune status`` holds the lock for a moment."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == LOCK_ATTEMPTS - 1:
                raise
            time.sleep(0.05)
