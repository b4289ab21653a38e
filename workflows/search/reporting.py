"""The report after a search: written by a separate process, in the time that is left.

A slow or failed report changes neither the search's exit code nor its results, and
``meshtune report RUN`` writes the report later.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from analysis import RunFolder
from foundation.python import module_argv
from slurm import Launcher
from workflows.search.stopping import CONTINUE, Ending

SignalHandler = Callable[[int, FrameType | None], object]

LONGEST_S = 600.0
MARGIN_S = 20.0  # of the allocation, for the end of the job itself
SHORTEST_S = 5.0  # what the imports alone take
_PR_SET_PDEATHSIG = 1


def report_line(folder: RunFolder, launcher: Launcher, ending: Ending) -> str:
    """Write the report if the search is done and there is time; returns a line about it.

    A job with work left writes none: its script requeues it as soon as this process ends.
    """
    later = f"`meshtune report {shlex.quote(str(folder.path))}` writes it"
    if ending.code == CONTINUE:
        return f"the report is written when the search is done; {later} now"
    left_s = None if launcher.simulated else launcher.time_left_s()
    limit_s = LONGEST_S if left_s is None else min(LONGEST_S, left_s - MARGIN_S)
    if limit_s < SHORTEST_S:
        return f"no time is left for the report; {later}"
    argv = module_argv("workflows.search.reporting", str(folder.path), str(os.getpid()))
    if problem := run_bounded(argv, limit_s):
        return f"the report was not written ({problem}); {later}"
    return f"report: {folder.report / 'index.html'}"


def run_bounded(argv: Sequence[str], limit_s: float) -> str:
    """Why a command failed, or ""; it is killed after ``limit_s``, or by this process's signals."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
        )
    except OSError as error:
        return str(error)
    received: list[signal.Signals] = []

    def kill(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number))
        process.kill()

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), kill)):
        try:
            _, said = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"it took more than {limit_s:.0f} s"
    if received:
        return f"stopped by {received[0].name}"
    if process.returncode < 0:
        return f"killed by {signal.Signals(-process.returncode).name}"
    lines = said.strip().splitlines() or [f"exit code {process.returncode}"]
    return lines[-1] if process.returncode else ""


def ending_signals() -> list[signal.Signals]:
    """Signals that ask a command to end: INT, TERM and, if nohup did not start it, HUP."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


def drop_closed_output() -> None:
    """Discard what is printed from now on to a terminal that is closed, which would fail."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


@contextmanager
def handling(handlers: Mapping[signal.Signals, SignalHandler]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(argv: Sequence[str]) -> int:
    """Write a run's report while the parent lives; the arguments are RUN and the parent's PID."""
    folder, parent = argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it here, too
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1
    from analysis import write_report

    try:
        write_report(folder)
    except Exception as error:
        print(f"{type(error).__name__}: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
