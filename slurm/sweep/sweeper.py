"""The driver's end of a sweep: it asks all nodes, and silent ones again, each alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from slurm.launcher import LauncherError
from slurm.sweep.node import WORD

_AT_ONCE = 16  # nodes asked alone at the same time; sshd refuses more
_SWEPT = re.compile(rf"(?m){WORD} (\S+) ([\d,]*)$")

Answers = dict[str, tuple[int, ...]]  # node -> processes that do not die
Ask = Callable[[Sequence[str], Collection[str]], tuple[Answers, str]]
"""Ends trials on nodes; returns the nodes' answers, and all output."""
Run = Callable[[Sequence[str], Mapping[str, str], float], str]


@dataclass(frozen=True)
class Swept:
    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # node -> undying processes
    silent: tuple[str, ...] = ()  # nodes that did not answer
    said: str = ""  # output about silent nodes


def sweep(ask: Ask, nodes: Sequence[str], names: Collection[str], one_by_one: bool = True) -> Swept:
    """End these trials on these nodes; returns when they are gone, or are found not to die.

    Without ``names``, only find out which nodes answer. ``one_by_one`` asks silent nodes again,
    each alone: one node that is down makes a sweep fail for all.
    """
    left, said = ask(nodes, names)
    silent = [node for node in nodes if node not in left]
    if silent and one_by_one and len(nodes) > 1:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for answer, words in pool.map(lambda node: ask([node], names), silent):
                left |= answer
                said = said if answer else words
        silent = [node for node in nodes if node not in left]
    stuck = {node: pids for node, pids in left.items() if pids}
    return Swept(stuck, tuple(silent), said if silent else "")


def answers(said: str) -> Answers:
    """The answers in some output, by the value of the node variable."""
    return {
        node: tuple(int(pid) for pid in pids.split(",") if pid)
        for node, pids in _SWEPT.findall(said)
    }


def run_program(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
    """All output of a program, however it ends; raises LauncherError if it cannot be started."""
    with tempfile.TemporaryFile() as output:  # a leftover ssh would hold a pipe open
        try:
            child = subprocess.Popen(
                argv,
                cwd="/",  # every node has it
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
            )
        except OSError as error:
            raise LauncherError(f"{argv[0]} cannot be started: {error}") from error
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with every ssh that still waits for a host
        child.wait()
        output.seek(0)
        return output.read().decode(errors="replace")
