"""A run folder as data: the journal is the only truth, everything here is derived from it.

Every line of ``journal.jsonl`` is one JSON object with ``v`` (schema version), ``t`` (seconds
since the epoch) and ``event``:

========== =====================================================================================
event      further keys
========== =====================================================================================
opened     space (name), fingerprint, seed, launcher, nodes, objective ({maximize|minimize: key})
proposed   trial, config, by (what chose it), why, expected (objective, low, high, fits: the
           probability to run, gain, left; what is not known is absent)
started    trial, attempt, name (of the step or process group), nodes, repeat (True: the trial
           has its result, and is measured once more)
ended      trial, attempt, kind, objective (None unless ok), result, message, stderr_tail,
           elapsed_s, nodes, final (False: the trial will run again, or this was a repeat), early
           (True: stopped before its last step, for it was too slow), saved_node_s (that cost less)
closed     reason
========== =====================================================================================

``repeat``, ``early`` and ``saved_node_s`` are absent where they say nothing, and in old journals.
Where several objectives are sought, ``opened`` has ``objectives``, a list of which ``objective`` is
the first, and ``ended`` has ``objectives``, figures by key.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.run.trial import Attempt, Trial

JOURNAL_VERSION = 1


class RunError(Exception):
    """A run folder that cannot be read; the message names the file, the line and the remedy."""


@dataclass
class Run:
    """All that a journal says, folded."""

    directory: Path
    space: str = ""
    fingerprint: str = ""
    seed: int = 0
    objective: dict[str, str] = field(default_factory=dict)
    objectives: list[dict[str, str]] = field(default_factory=list)  # all, where there are several
    launcher: str = ""
    opened_t: list[float] = field(default_factory=list)
    left_t: list[float] = field(default_factory=list)  # last events of all sessions but the last
    closed: str | None = None  # why the last session ended; None: it is running, or was killed
    trials: dict[int, Trial] = field(default_factory=dict)
    last_t: float = 0.0

    @property
    def past_sessions_s(self) -> float:
        """Time that earlier drivers were alive, up to their last word."""
        return sum(left - opened for opened, left in zip(self.opened_t, self.left_t, strict=False))

    @property
    def maximize(self) -> bool:
        return "minimize" not in self.objective

    @property
    def objective_key(self) -> str:
        return next(iter(self.objective.values()), "objective")

    @property
    def goals(self) -> list[tuple[str, bool]]:
        """Key of every objective, and whether it is maximized; the first is that of the best."""
        if not self.objectives:
            return [(self.objective_key, self.maximize)]
        return [(next(iter(o.values())), "minimize" not in o) for o in self.objectives]

    def merits(self, trial: Trial) -> tuple[float, ...]:
        """A success's objectives in order, signed so that more is better."""
        if not self.objectives:
            return ((trial.objective or 0.0) * (1 if self.maximize else -1),)
        figures = [trial.objectives.get(key, trial.objective or 0.0) for key, _ in self.goals]
        return tuple(x if up else -x for x, (_, up) in zip(figures, self.goals, strict=True))

    @property
    def best(self) -> Trial | None:
        """The successful trial with the best first objective; the earliest of equals.

        What was stopped early is none: it was slower than the best of its time, and who knows how
        it would have ended.
        """
        done = [t for t in self.trials.values() if t.ok and t.objective is not None and not t.early]
        return max(done, key=lambda t: (*self.merits(t), -t.number), default=None)


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the journal's events in order.

    A last line without its newline is what a killed driver leaves of a write: it is skipped.
    Any other unreadable line raises RunError with its number.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; a run folder holds a journal.jsonl") from error
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            event = json.loads(line)
            version = event["v"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{path}:{number}: not a journal line ({error}); restore or remove it"
            ) from error
        if version != JOURNAL_VERSION:
            raise RunError(
                f"{path}:{number}: journal version {version}, this meshtune reads {JOURNAL_VERSION}"
            )
        yield event


def fold(directory: Path, events: Iterable[Mapping[str, Any]]) -> Run:
    """Fold events into a Run; the order of events is the order of the journal.

    Raises:
        RunError: an event lacks a key, or speaks of a trial that was never proposed.
    """
    run = Run(directory)
    for number, event in enumerate(events, start=1):
        try:
            apply(run, event)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{directory / 'journal.jsonl'}:{number}: event {event.get('event')!r} does not "
                f"fit what precedes it ({type(error).__name__}: {error}); restore or remove it"
            ) from error
    return run


def apply(run: Run, event: Mapping[str, Any]) -> None:
    """Fold one more event into ``run``."""
    t = float(event["t"])
    match event["event"]:
        case "opened":
            if run.opened_t:
                run.left_t.append(run.last_t)
            run.space, run.fingerprint = event["space"], event["fingerprint"]
            run.seed, run.objective = event["seed"], dict(event["objective"])
            run.objectives = [dict(objective) for objective in event.get("objectives", ())]
            run.launcher, run.closed = event["launcher"], None
            run.opened_t.append(t)
        case "proposed":
            number = event["trial"]
            run.trials[number] = Trial(
                number, dict(event["config"]), t, event.get("by", ""), event.get("why", "")
            )
            run.trials[number].expected = dict(event.get("expected") or {})
        case "started":
            attempt = Attempt(event["attempt"], event["name"], tuple(event["nodes"]), t)
            attempt.repeat = bool(event.get("repeat"))
            run.trials[event["trial"]].attempts.append(attempt)
        case "ended":
            _end(run, run.trials[event["trial"]], event, t)
        case "closed":
            run.closed = event["reason"]
    run.last_t = t


def _end(run: Run, trial: Trial, event: Mapping[str, Any], t: float) -> None:
    for attempt in trial.attempts:
        if attempt.number == event["attempt"]:
            # What a killed driver left running is settled by the next one, maybe hours later: its
            # nodes were held up to the last word of its own session, as far as anybody knows.
            own_end = (left for left in run.left_t if left >= attempt.started_t)
            attempt.ended_t = next(own_end, t)
            attempt.kind, attempt.message = event["kind"], event["message"]
            attempt.objective, attempt.result = event["objective"], event.get("result") or {}
            attempt.objectives = event.get("objectives") or {}
            attempt.early = bool(event.get("early"))
            attempt.saved_node_s = float(event.get("saved_node_s", 0.0))
            if attempt.repeat:
                _revise(trial, attempt, event.get("stderr_tail", ""))
                return
    trial.message, trial.stderr_tail = event["message"], event.get("stderr_tail", "")
    if event["final"]:
        trial.kind, trial.objective, trial.ended_t = event["kind"], event["objective"], t
        trial.objectives = event.get("objectives") or {}
        trial.result = event.get("result") or {}


def _revise(trial: Trial, repeat: Attempt, stderr_tail: str) -> None:
    """What a trial is worth after it was measured once more.

    The median of its measurements: on real clusters single runs take several times as long as
    their like, and would pull a mean along. The figures beside the objective are those of the
    measurement nearest to it, so that they belong together. A trial whose repeats fail more often
    than it was measured has failed.
    """
    complete = [a for a in trial.attempts if a.objective is not None and not a.early]
    if repeat.failed and trial.failed_repeats > len(complete):
        trial.kind, trial.objective, trial.result = repeat.kind, None, repeat.result
        trial.message = f"failed when it was measured again: {repeat.message}"
        trial.stderr_tail = stderr_tail
    elif complete:
        middle = statistics.median([a.objective for a in complete if a.objective is not None])
        nearest = min(complete, key=lambda a: abs((a.objective or 0.0) - middle))
        trial.objective, trial.result = middle, nearest.result
        if nearest.objectives:
            first = next(iter(nearest.objectives))
            trial.objectives = {**nearest.objectives, first: middle}


def read_run(directory: Path | str) -> Run:
    """Read ``runs/NAME``; raises RunError if it is not a run folder."""
    directory = Path(directory)
    return fold(directory, read_events(directory / "journal.jsonl"))
