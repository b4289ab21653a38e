"""Why a session of a search ends, and its exit code.

A search whose attempts all fail ends before it uses up the allocation; after the first one if the
space or the installation is the cause, which would fail every configuration.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from analysis import Ended, Run
from slurm import Kind

DONE, FAILED, CONTINUE, INTERRUPTED = 0, 1, 3, 130
MAX_IN_A_ROW = 8  # attempts in a row that crash or cannot start, or trials that are given up
_NO_PROGRAM = re.compile(r"no (?:such )?program|execve\(\): .*(?:No such file|Permission denied)")


@dataclass(frozen=True)
class Ending:
    """Why the driver stopped, the process's exit code, and the limit of its budget."""

    reason: str
    code: int
    limit: Literal["trials", "wall_time", "node_hours", "expected_gain"] | None = None  # reached


def code_of(kind: Kind) -> int:
    """Exit code of a command that runs a single trial, by how it ended."""
    return {Kind.OK: DONE, Kind.CANCELLED: INTERRUPTED}.get(kind, FAILED)


def is_nobodys(end: Ended, run: Run) -> bool:
    """Whether no trial has succeeded yet, and every configuration would crash like this."""
    never = not any(t.ok for t in run.trials.values())
    return never and end.kind == Kind.CRASH and run.is_nobodys(end.message)


class RepeatedFailures:
    """Counts failures in a row that are not specific to one configuration."""

    def __init__(self) -> None:
        self._latest: deque[Kind] = deque(maxlen=MAX_IN_A_ROW)
        self._given_up = 0  # trials in a row whose attempts all had outside causes

    def note(self, end: Ended, run: Run, on: Collection[str] = ()) -> Ending | None:
        """Why the search should end after this attempt; None if it should not.

        ``run`` has the attempt already. ``on`` are the nodes suspected of the failure: a program
        may be missing there alone.
        """
        kind, message = Kind(end.kind), end.message
        if kind.row.cause == "driver":
            return None
        never = not any(t.ok for t in run.trials.values())
        self._given_up = 0 if kind.observed else self._given_up + end.final
        if self._given_up == MAX_IN_A_ROW:
            reason = f"the last {MAX_IN_A_ROW} trials were given up; the last one: {message}"
            return Ending(reason, FAILED if never else CONTINUE)
        missing = kind is Kind.LAUNCH_FAILURE and not on and _NO_PROGRAM.search(message)
        if (never and missing) or is_nobodys(end, run):
            remedy = "mend it, and search again: what failed runs again"
            return Ending(f"every configuration would fail so: {message}; {remedy}", FAILED)
        self._latest.append(kind)
        broken = [kind for kind in self._latest if kind.row.stops_search]
        launches = sum(not kind.observed for kind in broken)
        # A failed launch is not about its trial: after eight in a row none will start.
        if len(broken) < MAX_IN_A_ROW or not (never or launches == MAX_IN_A_ROW):
            return None
        how = "crashed or could not start" if launches else "crashed"
        how = "could not start" if launches == MAX_IN_A_ROW else how
        reason = f"the last {MAX_IN_A_ROW} attempts {how}; the last one: {message}"
        return Ending(reason, FAILED if never else CONTINUE)
