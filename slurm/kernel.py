"""Linux processes, descriptors and memory, for an agent that imports as little as possible.

The standard library alone, from Python 3.8 on; :mod:`slurm.agent` loads it by its path. As a
program, ``kernel.py PARENT PROGRAM ...``, it executes PROGRAM so that it dies with its parent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sys

try:
    import ctypes
except ImportError:  # a container's Python without libffi: Slurm ends abandoned processes then
    ctypes = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


def prctl(option: int, value: int) -> None:
    """Set a property of this process, as far as this Python can."""
    if ctypes is not None:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(ancestor: int, spared: int = 0) -> set[int]:
    """Ids of all running processes below ``ancestor``, except ``spared`` and those below it."""
    listed = os.path.exists("/proc/self/task/%d/children" % os.getpid())
    # The kernel's list may miss a process while another leaves it: look twice before saying none.
    return (listed and _below(ancestor, spared, {})) or _below(
        ancestor, spared, {} if listed else _all_children()
    )


def _below(ancestor: int, spared: int, known: dict[int, list[int]]) -> set[int]:
    found: set[int] = set()
    new = {ancestor}
    while new:
        below = (known.get(pid, ()) if known else _children(pid) for pid in new)
        new = {child for children in below for child in children} - found - {spared}
        found |= new
    return {pid for pid in found if state_and_parent(pid)[0] not in "ZX"}


def _children(pid: int) -> list[int]:
    """Children of a process, from the kernel's own list."""
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, thread)) as file:
                found += map(int, file.read().split())
    except OSError:  # it has ended, and its children have another parent
        pass
    return found


def _all_children() -> dict[int, list[int]]:
    """Children of each process of this machine, for a kernel without such lists."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            children.setdefault(state_and_parent(int(entry))[1], []).append(int(entry))
    return children


def state_and_parent(pid: int) -> tuple[str, int]:
    """State of a process, as /proc has it, and its parent; X if it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            stat = file.read().decode(errors="replace")
    except OSError:
        return "X", 0
    state, parent = stat.rpartition(")")[2].split()[:2]  # the name may have parentheses, too
    return state, int(parent)


def kill(pid: int, number: int) -> None:
    """Send a signal to a process, if it exists and is this user's."""
    try:
        os.kill(pid, number)
    except OSError:  # gone, or of another user
        pass


def oom_kills() -> int:
    """Processes that the kernel has killed for lack of memory: in this cgroup, else on the host."""
    files = ["/proc/vmstat"]
    try:
        with open("/proc/self/cgroup") as groups:
            for line in groups:
                _, kind, path = line.rstrip("\n").split(":", 2)
                if kind == "memory":
                    files.insert(0, "/sys/fs/cgroup/memory%s/memory.oom_control" % path)
                elif not kind:
                    files.insert(-1, "/sys/fs/cgroup%s/memory.events" % path)
    except (OSError, ValueError):
        pass
    for name in files:
        try:
            with open(name) as file:
                for row in file:
                    if row.startswith("oom_kill "):
                        return int(row.split()[1])
        except OSError:
            continue
    return 0


def execute(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Become a program, as a shell would start it; raises OSError."""
    # Python ignores these two signals; another program expects their default handling.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without a first line that names its shell
            os.execve("/bin/sh", ["sh", *argv], dict(env))
        if error.errno == errno.ENOENT and argv[0] == "python":  # many images have python3 alone
            os.execvpe("python3", ["python3", *argv[1:]], dict(env))
        raise


def become(order: Mapping[str, Any], index: int, failed: int) -> NoReturn:
    """Execute a rank's program; on failure write errno and place to the descriptor ``failed``."""
    where = 1
    try:
        os.chdir(order["cwd"])
        where = 0
        own = {} if order["clear"] else dict(os.environ)
        env = {**own, **order["env"], **order["ranks"][index]}
        if order["memory_bytes"] is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (order["memory_bytes"],) * 2)
        try:  # out of memory, the kernel should kill the rank, not its agent
            with open("/proc/self/oom_score_adj", "r+") as file:
                file.write("500")
        except OSError:
            pass
        execute(order["argv"], env)
    except OSError as error:
        os.write(failed, b"%d %d" % (error.errno or errno.EIO, where))
    os._exit(127)


def notify(end: int) -> None:
    """Send this process SIGIO whenever the descriptor is ready; it never blocks."""
    os.set_inheritable(end, False)
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(end, fcntl.F_GETFL)
    fcntl.fcntl(end, fcntl.F_SETFL, flags | os.O_NONBLOCK | getattr(os, "O_ASYNC", 0o20000))
    os.kill(os.getpid(), signal.SIGIO)  # it may be ready already


def read(end: int) -> bytes | None:
    """Available bytes; empty if all writers have ended; None if none are available yet."""
    try:
        return os.read(end, 1 << 16)
    except BlockingIOError:
        return None


def close(end: int) -> None:
    """Close a descriptor, if it is open."""
    try:
        os.close(end)
    except OSError:
        pass


def moved(end: int, mode: int) -> int:
    """Copy of a standard stream that ranks do not inherit; /dev/null takes its place."""
    copy = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    nothing = os.open(os.devnull, mode)
    os.dup2(nothing, end)
    os.close(nothing)
    return copy


if __name__ == "__main__":
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == int(sys.argv[1]):  # otherwise the parent has died meanwhile
        try:
            execute(sys.argv[2:], os.environ)
        except OSError as error:
            why = "%s cannot be started: %s" % (sys.argv[2], error.strerror)
            sys.exit("meshtune: %s; is it still on PATH (often `module load`)?" % why)
