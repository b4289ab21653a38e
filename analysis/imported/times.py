"""When the trials of another program ran, where it says so."""

from __future__ import annotations

from analysis.run.fold import Run
from analysis.run.trial import Attempt

NOT_SAID = ("the model and the cluster", "nodes and node-hours", "logs")
"""What no other program's results say."""


def with_times(run: Run, known: bool) -> Run:
    """The run, with an attempt for each trial; or its trials' order alone, without times.

    Args:
        run: whose trials have ``proposed_t`` and ``ended_t``; it is changed.
        known: whether these are times.
    """
    if not known:
        for at, trial in enumerate(run.trials.values()):
            trial.proposed_t = float(at)
            trial.ended_t = float(at) if trial.ended else None
        run.not_said = ("when trials ran", *run.not_said)
        return run
    for trial in run.trials.values():
        attempt = Attempt(1, "", (), trial.proposed_t, trial.ended_t, trial.kind, trial.message)
        attempt.objective, attempt.objectives = trial.objective, trial.objectives
        trial.attempts.append(attempt)
    run.opened_t = [min((t.proposed_t for t in run.trials.values()), default=0.0)]
    run.last_t = max((t.ended_t or t.proposed_t for t in run.trials.values()), default=0.0)
    return run
