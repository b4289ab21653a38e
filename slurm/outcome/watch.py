"""Watching a trial's processes until they end or have to be ended, and the ends of its ranks."""

from __future__ import annotations

import contextlib
import enum
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm.outcome.step_log import EarlyStop, StepLog, StopRule
from slurm.trial import STDERR_NAME, STDOUT_NAME, Lease, TrialSpec

_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.02, 1.0
_SUSPENDED_S = 5.0  # a poll that comes later than this was not held up by other work


class Termination(enum.Enum):
    EXITED = "exited"  # the processes ended by themselves, or one has failed
    TIMEOUT = "timeout"  # still running after ``timeout_s``
    NO_PROGRESS = "no progress"  # nothing in the logs for ``no_progress_timeout_s``
    STOPPED = "stopped"  # the driver asked for it
    STOPPED_EARLY = "stopped early"  # by its stop rule


@dataclass(frozen=True)
class Watched:
    termination: Termination
    elapsed_s: float  # since the watch began
    early_stop: EarlyStop | None = None  # with STOPPED_EARLY
    severed: str = ""  # how others have ended it: then it proves nothing about its configuration


def watch(
    spec: TrialSpec,
    exited: Callable[[], bool],
    stop: threading.Event,
    stop_rule: StopRule | None = None,
    failed: Callable[[], bool] = lambda: False,
) -> Watched:
    """Wait until the processes end, a timeout passes, ``stop`` is set, or the stop rule says so.

    Once a rank has ``failed``, the timeouts no longer apply: the others may wait for it in vain.
    Nor does time count in which this process was suspended: a suspended job's trials are, too.

    The stop rule is asked whenever the log has further steps. Progress is growth of the two logs in
    the trial's folder. The poll interval is 2 % of the time waited, at most a second: the end of a
    short trial is seen at once, and polling ninety long trials costs little.
    """
    steps = StepLog(spec.directory / STDOUT_NAME, spec.max_steps)
    started = progress = time.monotonic()
    size, suspended_s = -1, 0.0
    while True:
        elapsed_s = time.monotonic() - started
        if exited():
            return Watched(Termination.EXITED, elapsed_s)
        if stop.is_set():
            return Watched(Termination.STOPPED, elapsed_s)
        if elapsed_s - suspended_s >= spec.timeout_s:
            limit = Termination.EXITED if failed() else Termination.TIMEOUT
            return Watched(limit, elapsed_s)
        if stop_rule and steps.grew() and (early := stop_rule(steps.steps)):
            return Watched(Termination.STOPPED_EARLY, elapsed_s, early)
        if spec.no_progress_timeout_s is not None:
            before, size = size, _log_size(spec.directory)
            if size != before or failed():
                progress = time.monotonic()
            elif time.monotonic() - progress >= spec.no_progress_timeout_s:
                return Watched(Termination.NO_PROGRESS, elapsed_s)
        poll_s = min(_LONGEST_POLL_S, max(_SHORTEST_POLL_S, 0.02 * elapsed_s))
        due = time.monotonic() + poll_s
        stop.wait(poll_s)
        if (late_s := time.monotonic() - due) > _SUSPENDED_S:
            suspended_s, progress = suspended_s + late_s, progress + late_s


def _log_size(directory: Path) -> int:
    total = 0
    for name in (STDOUT_NAME, STDERR_NAME):
        with contextlib.suppress(OSError):  # a network file system may hiccup: no reason to stop
            total += (directory / name).lstat().st_size
    return total


def first_failed(codes: Mapping[int, int]) -> tuple[int, int] | None:
    """Rank and exit code of the first failed rank; later failures may be consequences of it.

    ``codes`` are in the order of the ranks' ends; a negative code is the signal.
    """
    return next((end for end in codes.items() if end[1] != 0), None)


def note_failures(spec: TrialSpec, lease: Lease, codes: Mapping[int, int]) -> str:
    """Lines that name the failed ranks, also appended to the log if it can be written."""
    lines = [
        f"meshtune: rank {rank} on {lease.nodes[rank // spec.ranks_per_node]} "
        + (f"ended with exit code {code}\n" if code > 0 else f"was ended by signal {-code}\n")
        for rank, code in codes.items()
        if code != 0
    ]
    said, log = "".join(lines), spec.directory / STDERR_NAME
    # The disk may be full, or the trainer may have removed or replaced the log.
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), os.fdopen(os.open(log, flags), "wb", buffering=0) as file:
        file.write(said.encode())
    return said
