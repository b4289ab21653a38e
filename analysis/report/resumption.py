"""How a search goes on: as far as its journal says, which has not all of the command's options."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote

from analysis.run.fold import Run

_WORK_LEFT = (3, 130)  # exit codes of a search that is not done
_BY_ITSELF = ("", "local", "srun")  # launchers that are found without being named
_OWN_PROGRAM = "ask-tell"  # runs the trials itself: there is no command
_TRIALS = re.compile(r"budget: \S+ trials?\b")
# What else may have ended a search, and what would let it go on.
_LIMITS = (
    (re.compile(r"budget: .* of wall time\b"), "raise budget.wall_time"),
    (re.compile(r"budget: .* node-hours?\b"), "raise budget.node_hours"),
    (re.compile(r"another batch is expected to gain "), "lower budget.expected_gain"),
)


def resumption(run: Run, home: Path, budget: int | None, trials: int) -> tuple[str, str] | None:
    """What to say of it, and the command; None where a search of its space has no more to do.

    Args:
        run: whose search it is.
        home: the run's folder, as the command is to call it.
        budget: of trials, so far.
        trials: that a longer search is told to have, if the trials ended it.
    """
    if run.launcher == _OWN_PROGRAM:
        return None
    launcher = "" if run.launcher in _BY_ITSELF else f" --launcher {quote(run.launcher)}"
    again = f"meshtune search {quote(str(home / 'space.yaml'))}{launcher}"
    if run.closed is None or run.closed_code in _WORK_LEFT:
        return "The search is not done. Unless it runs, this resumes it", again
    if _TRIALS.match(run.closed):
        more = f"{again} --trials {max(budget or 0, trials)}"
        return "The search has used up the trials of its budget. This gives it more", more
    for reason, remedy in _LIMITS:
        if reason.match(run.closed):
            words = f"The search ended: {run.closed}. To let it go on, {remedy} in a copy of its "
            copy = f"meshtune search COPY.yaml --run-dir {quote(str(home))}{launcher}"
            return f"{words}space.yaml", copy
    return None
