"""Times of another program's trials, if it records them."""

from __future__ import annotations

from collections.abc import Collection

from analysis.run.fold import Run
from analysis.run.trial import Attempt

MISSING = ("the model and the cluster", "nodes and node-hours", "logs")
"""Facts that other programs' results lack."""


def with_times(run: Run, known: bool, early: Collection[int] = ()) -> Run:
    """Give each trial one attempt; without ``known`` times, the trials' order only.

    Trials have ``proposed_t`` and ``ended_t``; ``early`` ones, by number, have an attempt in any
    case.
    """
    run.not_said = MISSING
    if not known:
        run.not_said = ("when trials ran", *MISSING)
        for at, trial in enumerate(run.trials.values()):
            trial.proposed_t = float(at)
            trial.ended_t = float(at) if trial.ended else None
    for trial in run.trials.values():
        if known or trial.number in early:
            made = Attempt(1, "", (), trial.proposed_t)
            made.ended_t, made.kind, made.message = trial.ended_t, trial.kind, trial.message
            made.objective, made.objectives = trial.objective, trial.objectives
            made.stopped_early = trial.number in early
            trial.attempts.append(made)
    if known:
        run.opened_t = [min((t.proposed_t for t in run.trials.values()), default=0.0)]
        run.last_t = max((t.ended_t or t.proposed_t for t in run.trials.values()), default=0.0)
    return run
