"""Processes that ask and tell one study together.

Each shares the run's lock as long as it has the study open, and holds a lock file of its own, by
which the others see whether it lives. For the time of a call it has the *turn*: it reads what the
others have written, and writes. A process that dies loses its locks, whatever it was doing.
"""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from analysis.run import lock as locking
from analysis.run.lines import RunError
from foundation.files import FileError
from foundation.messages import shown

TURN_S = 300.0  # of waiting: one call takes a second, and many may wait


class Worker:
    """One of the processes that have a study open.

    Attributes:
        name: no other worker has it.
        locks: whether the file system has locks; without, one process alone may have the study.

    Raises RunBusyError if a driver has the run, RunError or OSError if the lock files cannot be
    made.
    """

    def __init__(self, directory: Path) -> None:
        self.name = secrets.token_hex(4)
        self._folder = directory / locking.WORKERS
        self._files = [locking.lock(directory, shared=True)]
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._files += [
                locking.lock_file(self._folder / name) for name in (self.name, locking.TURN_NAME)
            ]
            self.locks = locking.try_lock(self._files[1], fcntl.LOCK_EX)
            locking.sign(self._files[1])
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                error.filename = str(self._folder)
            raise

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Exclude all other workers; raises RunBusyError if one has it for too long."""
        file = self._files[2]
        try:
            if not locking.try_lock(file, fcntl.LOCK_EX, TURN_S) and self.locks:
                raise OSError(None, "its file system has stopped giving locks")
        except BlockingIOError:
            path = self._folder / locking.TURN_NAME
            raise locking.RunBusyError(
                f"{shown(path)}: {locking.holder_of(path) or 'another process'} has held it for "
                f"{TURN_S:g} s; if that process is stopped or hangs, end it, and call again"
            ) from None
        except OSError as error:
            error.filename = str(self._folder / locking.TURN_NAME)
            raise
        try:
            with suppress(OSError):  # a full disk; it is for messages alone
                locking.sign(file)
            yield
        finally:
            _release(file)

    def lives(self, name: str) -> bool:
        """Whether the worker of this name has the study open; raises RunError if unknown."""
        try:
            return name == self.name or bool(name and locking.holder_of(self._folder / name))
        except FileError as error:  # no file can be opened just now, say
            raise RunError(f"{error}: nobody can tell whether that process lives") from None

    def is_alone(self) -> bool:
        """Whether no other lives; files of dead ones are removed. To be called in a turn."""
        others = [f for f in self._folder.iterdir() if f.name not in (self.name, locking.TURN_NAME)]
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
