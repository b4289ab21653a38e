"""Finding processes of this machine by their environment or files, and ending them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from slurm.kernel import descendants as descendants, kill, state_and_parent

AGENT = str(Path(__file__).with_name("agent.py"))
_PROC = Path("/proc")


def all_pids() -> list[int]:
    """Ids of every process that this one can see."""
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def environ(pid: int) -> dict[str, str]:
    """Environment that a process was started with; empty if it is gone or another user's.

    Agents hide theirs, so they carry the variables that name their trial as arguments.
    """
    folder = _PROC / str(pid)
    raw = b""
    with contextlib.suppress(OSError):
        try:
            raw = (folder / "environ").read_bytes()
        except PermissionError:
            told = (folder / "cmdline").read_bytes()
            raw = told if AGENT.encode() in told.split(b"\0") else b""
    items = raw.decode(errors="surrogateescape").split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)


def name(pid: int) -> str:
    """Name of the program, at most 15 characters; empty if it is gone."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text().strip()
    return ""


def open_files(pid: int) -> set[str]:
    """Paths that a process holds open; empty if it is gone or another user's."""
    folder = _PROC / str(pid) / "fd"
    paths = set()
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                paths.add(str(entry.readlink()))
    return paths


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    return state_and_parent(pid)[0] not in "ZX"


def with_environ(wanted: Callable[[dict[str, str]], bool]) -> set[int]:
    """Running processes, except this one, whose initial environment satisfies ``wanted``."""
    return {
        pid for pid in all_pids() if pid != os.getpid() and wanted(environ(pid)) and is_running(pid)
    }


def send(pids: Iterable[int], signum: signal.Signals) -> None:
    """Signal each process that still exists."""
    for pid in pids:
        kill(pid, signum)


def end_all(find: Callable[[], set[int]], deadline_s: float = 10.0) -> set[int]:
    """Kill everything that ``find`` returns, asking again until it returns nothing.

    Asking again also finds processes that were being forked meanwhile. Returns the processes left
    after the deadline, stuck in the kernel; normally none.
    """
    started = time.monotonic()
    while left := find():
        if time.monotonic() - started > deadline_s:
            return left
        send(left, signal.SIGKILL)
        time.sleep(0.02)
    return set()
