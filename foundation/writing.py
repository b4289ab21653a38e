"""Writing files so that a crash, a full disk or another user does no harm."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_atomically(
    path: Path, content: str | bytes, *, private: bool = False, sync: bool = False
) -> None:
    """Replace ``path`` in one step: no reader sees, and no killed process leaves, half of it.

    Only its owner may read a ``private`` one, as it may hold secrets (``trainer.env``). With
    ``sync`` it is on disk on return; else a crash of the machine may lose it.
    """
    if isinstance(content, str):
        content = content.encode("utf-8", errors="backslashreplace")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)  # left by a killed driver; its mode would stay
    mode = 0o600 if private else 0o666  # less the umask
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file)
        part.replace(path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)  # it may fill the disk
        if isinstance(error, OSError):
            error.filename = str(path)  # a failed write names no file, or the part
        raise


def sync_folder(folder: Path) -> None:
    """Bring a folder's names to disk, as ``fsync`` does a file's contents."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_private(path: Path, text: str) -> None:
    """Write a file that, if it is new, only its owner may read: a trial's environment is in it."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
