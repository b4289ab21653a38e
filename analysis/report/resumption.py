"""The command that resumes a search; the journal lacks some of the first command's options."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from analysis.run.fold import Run

_WORK_LEFT = (3, 130)  # exit codes of an unfinished search
_OWN_PROGRAM = "ask-tell"  # a program that runs the trials itself: there is no command
_TRIALS = re.compile(r"budget: \S+ trials?\b")
# Other reasons for which a search ends, and what lets it continue.
_LIMITS = (
    (re.compile(r"budget: .* of wall time\b"), "raise budget.wall_time"),
    (re.compile(r"budget: .* node-hours?\b"), "raise budget.node_hours"),
    (re.compile(r"another batch is expected to gain "), "lower budget.expected_gain"),
)


def resumption(run: Run, home: Path, budget: int | None, trials: int) -> tuple[str, str] | None:
    """A sentence and a command that continues the search; None if nothing is left to do.

    ``home`` is the folder's name in the command; if the trial ``budget`` ended the search, a longer
    one gets ``trials``.
    """
    if run.launcher == _OWN_PROGRAM:
        return None
    again = f"meshtune search {quote(str(home / 'space.yaml'))}{run.launcher_option}"
    if run.closed is None or run.closed_code in _WORK_LEFT:
        return "The search is not finished. If it is not running, resume it with", again
    if _TRIALS.match(run.closed):
        more = f"{again} --trials {max(budget or 0, trials)}"
        return "The trial budget is used up. To continue with more trials", more
    for reason, remedy in _LIMITS:
        if reason.match(run.closed):
            words = f"The search ended: {run.closed}. To continue, {remedy} in a copy of its "
            copy = f"meshtune search COPY.yaml --run-dir {quote(str(home))}{run.launcher_option}"
            return f"{words}space.yaml", copy
    return None
