"""Finding processes of this machine by their environment or files, and ending them.

The standard library alone, from Python 3.8 on: :mod:`slurm.fork_server` loads it by its path.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_PROC = Path("/proc")


def all_pids() -> list[int]:
    """Ids of every process that this one can see."""
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def environ(pid: int) -> dict[str, str]:
    """Environment that a process was started with; empty if it is gone or another user's."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    items = raw.decode(errors="surrogateescape").split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)


def name(pid: int) -> str:
    """Name of the program, at most 15 characters; empty if it is gone."""
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def open_files(pid: int) -> set[str]:
    """Paths that a process holds open; empty if it is gone or another user's."""
    folder = _PROC / str(pid) / "fd"
    paths = set()
    try:
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                paths.add(str(entry.readlink()))
    except OSError:
        return set()
    return paths


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie."""
    return _state_and_parent(pid)[0] not in "ZX"


def descendants(ancestor: int) -> set[int]:
    """Ids of all running processes below ``ancestor``."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        state, parent = _state_and_parent(pid)
        if state not in "ZX":
            children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    new = [ancestor]
    while new:
        new = [child for pid in new for child in children.get(pid, ())]
        found.update(new)
    return found


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "X", 0
    state, parent = stat.rpartition(")")[2].split()[:2]  # the name before it may hold anything
    return state, int(parent)


def with_environ(wanted: Callable[[dict[str, str]], bool]) -> set[int]:
    """Running processes, this one apart, whose initial environment satisfies ``wanted``."""
    return {
        pid for pid in all_pids() if pid != os.getpid() and wanted(environ(pid)) and is_running(pid)
    }


def send(pids: Iterable[int], signum: signal.Signals) -> None:
    """Signal each process that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue


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
