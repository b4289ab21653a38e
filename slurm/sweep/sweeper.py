"""The driver's end of a sweep: all nodes are asked, and who did not answer once more alone."""

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

_AT_ONCE = 16  # nodes that are asked one by one; sshd turns away more
_SWEPT = re.compile(rf"(?m){WORD} (\S+) ([\d,]*)$")

Answers = dict[str, tuple[int, ...]]  # node -> processes that would not die
Ask = Callable[[Sequence[str], Collection[str]], tuple[Answers, str]]
"""Sweeps nodes of trials; returns their answers, and all that was said."""
Run = Callable[[Sequence[str], Mapping[str, str], float], str]


@dataclass(frozen=True)
class Swept:
    """What sweeping some nodes has shown."""

    left: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # node -> would not die
    silent: tuple[str, ...] = ()  # nodes that did not answer
    said: str = ""  # about them


def sweep(ask: Ask, nodes: Sequence[str], names: Collection[str], one_by_one: bool = True) -> Swept:
    """End these trials on these nodes; returns when they are gone, or would not go.

    Args:
        ask: how nodes are asked.
        nodes: to sweep.
        names: of trials; none: only see which nodes answer.
        one_by_one: one that is down makes all of the sweep fail; ask those that were silent alone.
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
    """What nodes have answered, by what their node variable held."""
    return {
        node: tuple(int(pid) for pid in pids.split(",") if pid)
        for node, pids in _SWEPT.findall(said)
    }


def run_program(argv: Sequence[str], environ: Mapping[str, str], timeout_s: float) -> str:
    """Everything that a program prints; how it ends does not matter.

    Raises:
        LauncherError: if it cannot be started.
    """
    with tempfile.TemporaryFile() as output:  # not a pipe, which an ssh left behind would hold open
        try:
            child = subprocess.Popen(
                argv,
                cwd="/",  # the ranks', too: every node has it
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal is the driver's to handle
            )
        except OSError as error:
            raise LauncherError(f"{argv[0]} cannot be started: {error}") from error
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with every ssh that still waits for its host
        child.wait()
        output.seek(0)
        return output.read().decode(errors="replace")
