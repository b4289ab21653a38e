"""A process that has imported a trainer's modules, and forks the ranks of one trial after another.

Importing torch takes seconds, and minutes where thousands of ranks read a shared file system;
forking a process that has imported it takes milliseconds. That process never trains: it has no
thread that could hold a lock, no process group, no GPU context, and no connection to the driver.
:mod:`slurm.agent` starts it, ``python fork_server.py MODULES`` (names, with commas), with the
trainer's interpreter, from Python 3.8 on. It reads the agent's orders, a line of JSON for each
trial, and answers with the rank's process id on descriptor 3.

It forks twice, so that the rank loses its parent and becomes a child of the agent, a subreaper: the
agent learns from the kernel how the rank ends.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, Mapping  # noqa: UP035 - Python 3.8

_REPLIES = 3


def _neighbour(name: str) -> Any:
    """A module beside this file, loaded without its package, which ranks must not see."""
    spec = importlib.util.spec_from_file_location(
        f"_meshtune_{name}", Path(__file__).with_name(f"{name}.py")
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_kernel, _forked = _neighbour("kernel"), _neighbour("forked_rank")


def serve(modules: list[str]) -> Callable[[], None] | None:
    """Fork a rank for every order, until there are no more.

    Returns the function that a forked rank has to run; None in the server.
    """
    agent, unread, loaded = os.getppid(), b"", False
    while data := os.read(0, 1 << 16):
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            order: Mapping[str, Any] = json.loads(line)
            if not loaded:
                _forked.load(modules, order)
                loaded = True
            threads = _forked.started_threads()
            if _is_rank(agent):
                return functools.partial(_forked.run_rank, order, 0, threads)
    return None


def _is_rank(agent: int) -> bool:
    """Fork twice; whether this process is the rank."""
    told, told_w = os.pipe()
    middle = os.fork()
    if middle == 0:
        middle = os.getpid()
        if rank := os.fork():
            os.write(told_w, b"%d\n" % rank)
            os._exit(0)
        while os.getppid() == middle:
            time.sleep(0.0005)
        _kernel.prctl(_kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # at the death of its new parent
        if os.getppid() != agent:
            os._exit(1)
        os.setpgid(0, 0)  # the server must not get signals that a rank sends to its group
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        for end in (nothing, told, told_w, _REPLIES):
            os.close(end)
        return True
    os.close(told_w)
    os.waitpid(middle, 0)  # only then is the rank the agent's child
    os.write(_REPLIES, os.read(told, 100))
    os.close(told)
    return False


def main() -> None:
    """Serve an agent; in a forked rank, run it."""
    # Python has put this file's folder first; ranks must not import modules from it.
    own = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != own]
    if rank := serve([name for name in sys.argv[1].split(",") if name]):
        rank()


if __name__ == "__main__":
    main()
