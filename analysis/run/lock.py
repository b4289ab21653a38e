"""The lock of a run, held by its driver as long as the process lives.

It is a file of its own: closing any handle of a locked file may drop the lock (POSIX locks, and so
flock over NFS), and every reader opens the journal.

The processes of an ask-and-tell study share it while they have the study open. Each also holds a
lock file of its own, which shows the others that it is alive. During a call a process has the
*turn*: it reads what the others have written, and writes. A process that dies loses its locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import IO

from analysis.run.lines import RunError
from foundation.files import FileError, MissingFileError, open_regular
from foundation.messages import listed, shown

LOCK_NAME = "driver.lock"
WORKERS = "workers"  # folder of the lock files of those that share the run
TURN_NAME = "turn"
LOCK_S = 0.5
TURN_S = 300.0  # longest wait for the turn: a call takes a second, and many may wait
MAX_HOLDER_BYTES = 300

# On file systems without locks (some Lustre mounts) the search runs unlocked.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


class RunBusyError(RunError):
    """Another driver is running this run; the message says where."""


def lock(directory: Path, *, shared: bool = False) -> IO[bytes]:
    """Lock a run's folder until the returned file is closed or the process ends.

    ``shared`` admits others that share it, but no driver. Raises RunBusyError if another process
    holds it, RunError or OSError if the lock file cannot be made.
    """
    file = lock_file(directory / LOCK_NAME)
    try:
        try_lock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        if not shared:
            sign(file)
    except BlockingIOError as error:
        holder = _workers(directory) or _holder(file)
        file.close()
        raise RunBusyError(
            f"{shown(directory)} is being searched by another meshtune ({holder}); "
            f"`meshtune status {quote(shown(directory))}` shows it"
        ) from error
    except OSError as error:
        file.close()
        error.filename = str(directory / LOCK_NAME)
        raise
    return file


def opened(path: Path, flags: int, mode: int) -> int:
    """A descriptor; raises RunError for a link that leads to itself, else OSError."""
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RunError(f"{shown(path)}: is a link that leads to itself; remove it") from None


def lock_file(path: Path) -> IO[bytes]:
    """Open a file to lock it; raises OSError if that fails, RunError if it is no regular file."""
    try:
        if path.exists():
            open_regular(path).close()  # a pipe would block or lock nothing
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return os.fdopen(opened(path, flags, 0o666), "r+b", buffering=0)
    except FileError as error:
        raise RunError(f"{error}; remove it") from None


def try_lock(file: IO[bytes], kind: int, within_s: float = LOCK_S) -> bool:
    """Lock a file, with retries: a reader holds a lock for a moment.

    Returns False where the file system has no locks. Raises BlockingIOError if another holds it.
    """
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(0.005)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False


def sign(file: IO[bytes]) -> None:
    """Write into a locked file who holds it."""
    file.truncate(0)
    os.pwrite(file.fileno(), f"{socket.gethostname()} pid {os.getpid()}".encode(), 0)


def driver_of(directory: Path) -> str | None:
    """``HOST pid PID`` of the driver that holds this run, or of each process that asks and tells.

    None if nobody holds it; raises RunError if that is unknown.
    """
    try:
        return holder_of(directory / LOCK_NAME) or _workers(directory)
    except FileError as error:
        raise RunError(f"{error}: nobody can tell whether a search is running") from None


def holder_of(path: Path) -> str | None:
    """Text that the holder of a lock file has written into it; None if nobody holds it."""
    try:
        with open_regular(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                return None if error.errno in _NO_LOCKS else _holder(file)
    except MissingFileError:
        pass
    return None


def _workers(directory: Path) -> str | None:
    files = (f for f in sorted((directory / WORKERS).glob("*")) if f.name != TURN_NAME)
    return listed(filter(None, map(holder_of, files)), 4) or None


def _holder(file: IO[bytes]) -> str:
    said = os.pread(file.fileno(), MAX_HOLDER_BYTES, 0).decode(errors="replace").strip()
    return shown(said) or "it does not say where"


class Worker:
    """One of the processes that have a study open.

    Attributes:
        name: unique among workers.
        locks: whether the file system has locks; if not, only one process may have the study open.

    Raises RunBusyError if a driver has the run, RunError or OSError if the lock files cannot be
    made.
    """

    def __init__(self, directory: Path) -> None:
        self.name = secrets.token_hex(4)
        self._folder = directory / WORKERS
        self._files = [lock(directory, shared=True)]
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            own, self._turn = (lock_file(self._folder / name) for name in (self.name, TURN_NAME))
            self._files += [own, self._turn]
            self.locks = try_lock(own, fcntl.LOCK_EX)
            sign(own)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                error.filename = str(self._folder)
            raise

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude all other workers; raises RunBusyError if one has it for too long."""
        try:
            if not try_lock(self._turn, fcntl.LOCK_EX, TURN_S) and self.locks:
                raise OSError(None, "its file system has stopped giving locks")
        except BlockingIOError:
            path = self._folder / TURN_NAME
            raise RunBusyError(
                f"{shown(path)}: {holder_of(path) or 'another process'} has held it for "
                f"{TURN_S:g} s; if that process is stopped or hangs, end it, and call again"
            ) from None
        except OSError as error:
            error.filename = str(self._folder / TURN_NAME)
            raise
        try:
            with suppress(OSError):  # a full disk; it is for messages alone
                sign(self._turn)
            yield
        finally:
            _release(self._turn)

    def lives(self, name: str) -> bool:
        """Whether the worker of this name has the study open; raises RunError if unknown."""
        try:
            return name == self.name or bool(name and holder_of(self._folder / name))
        except FileError as error:  # no file can be opened just now, say
            raise RunError(f"{error}: nobody can tell whether that process lives") from None

    def is_alone(self) -> bool:
        """Whether no other worker lives; removes files of dead ones. To be called in a turn."""
        others = [f for f in self._folder.iterdir() if f.name not in (self.name, TURN_NAME)]
        for file in others:
            if not self.lives(file.name):
                file.unlink(missing_ok=True)
        return not any(file.exists() for file in others)

    def close(self) -> None:
        """Release every lock, also those that a forked process has inherited."""
        with suppress(OSError):
            (self._folder / self.name).unlink(missing_ok=True)
        for file in self._files:
            _release(file)
            file.close()


def _release(file: object) -> None:
    with suppress(OSError, ValueError):  # it has no locks, or is closed
        fcntl.flock(file, fcntl.LOCK_UN)  # type: ignore[arg-type]
