"""A run as data, folded from its journal, which is the only source of truth."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from analysis import units
from analysis.pareto import non_dominated
from analysis.run import events
from analysis.run.folder import Identity, RunFolder
from analysis.run.lines import Lines, RunError, damaged
from analysis.run.trial import Attempt, Trial
from foundation import quantities
from foundation.bounds import Bound
from foundation.files import is_number
from foundation.messages import html_table, shown
from search_spaces import SearchSpace

SHOWN_FRONT = 8


# Failures by no configuration: a result read wrongly; a missing module, script, file or variable.
_NOBODYS = re.compile(
    r"^exit code 0, but .*(?:the pattern of |no pattern matched )|^the result has no number "
    r"|No module named|can't open file|FileNotFoundError|KeyError: '[A-Z][A-Z0-9_]*'$"
)


@dataclass
class Run:
    directory: Path
    space: str = ""
    fingerprint: str = ""
    seed: int = 0
    # key of every objective and whether it is maximized; the first one ranks trials
    goals: list[tuple[str, bool]] = field(default_factory=lambda: [("objective", True)])
    subject_to: tuple[Bound, ...] = ()  # on measured values
    launcher: str = ""
    identity: Identity | None = None  # of the last session's folder
    opened_t: list[float] = field(default_factory=list)
    left_t: list[float] = field(default_factory=list)  # last event of each session but the last
    closed: str | None = None  # why the last session ended; None: it is running, or was killed
    closed_code: int | None = None  # exit code of the last session, if known
    closed_by: str | None = None  # key of the budget that ended the last session, if one did
    trials: dict[int, Trial] = field(default_factory=dict)
    last_t: float = 0.0
    origin: str = ""  # source of another program's trials; empty for meshtune's own
    not_said: tuple[str, ...] = ()  # what that source lacks

    @property
    def plot(self) -> Any:
        """The figures of the run's report by name: ``run.plot.roofline(width=3.3)``."""
        # Imported late, as figures import runs.
        return import_module("analysis.report.drawing").Plots(self)

    def _repr_html_(self) -> str:
        rows = {"run": self.where, "space": self.space, "trials": self.counts, "best": self.no_best}
        if best := self.best:
            rows["best"] = f"trial {best.number}: {self.objectives_text(best)}"
            rows["configuration"] = quantities.config_text(best.config)
        return html_table(rows)

    @property
    def counts(self) -> str:
        """``14 (2 oom)``: the trials that have ended, and the failed ones among them."""
        failed = Counter(trial.kind for trial in self.ended if not trial.ok)
        kinds = ", ".join(f"{n} {kind}" for kind, n in failed.most_common())
        return f"{len(self.ended)}{f' ({kinds})' if kinds else ''}"

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.directory)

    @property
    def where(self) -> str:
        """Its folder, or the source of another program's trials."""
        return self.origin or str(self.directory)

    @property
    def launcher_option(self) -> str:
        """`` --launcher NAME`` for the command that resumes it; empty if this machine ran it."""
        return "" if self.launcher in ("", "local") else f" --launcher {quote(self.launcher)}"

    def search_s(self, t: float) -> float:
        """Seconds of searching up to ``t``, without the time between sessions.

        A run that is chained over several allocations waits in the queue between them.
        """
        origin_t = self.opened_t[0] if self.opened_t else 0.0
        idle = zip(self.left_t, self.opened_t[1:], strict=True)
        return t - origin_t - sum(max(0.0, min(t, end) - left) for left, end in idle if t > left)

    @property
    def node_hours(self) -> float:
        return sum(trial.node_seconds for trial in self.trials.values()) / 3600

    @property
    def ended(self) -> list[Trial]:
        return [trial for _, trial in sorted(self.trials.items()) if trial.ended]

    @property
    def reported(self) -> list[Trial]:
        """The trials that have ended, and those that crashed and wait to run again."""
        return [trial for _, trial in sorted(self.trials.items()) if trial.ended or trial.crashes]

    @property
    def maximize(self) -> bool:
        return self.goals[0][1]

    @property
    def objective_key(self) -> str:
        return self.goals[0][0]

    def merits(self, trial: Trial) -> tuple[float, ...]:
        """A success's objectives in order, signed so that more is better."""
        values = [trial.objectives.get(key, trial.objective or 0.0) for key, _ in self.goals]
        return tuple(x if up else -x for x, (_, up) in zip(values, self.goals, strict=True))

    def check_configurations(self, space: SearchSpace) -> None:
        """Raise RunError if a trial's configuration is not in the space: one of both was edited."""
        for trial in self.trials.values():
            try:
                space.raw(trial.config)
            except ValueError as error:
                raise RunError(
                    f"{shown(self.folder.journal_file)}: trial {trial.number}: its configuration "
                    f"is not of {shown(self.folder.space_file)}: {error}; put back the files as "
                    "they were, or begin another run"
                ) from None

    @staticmethod
    def is_nobodys(message: str) -> bool:
        """Whether every configuration would crash with this message, as long as none succeeds."""
        return bool(_NOBODYS.search(message))

    @property
    def best(self) -> Trial | None:
        """The successful trial with the best first objective; the earliest of equals.

        A trial that was stopped early is never the best: it was slower than the best of its time.
        Nor is one that violates a bound.
        """
        done = (t for t in self.trials.values() if t.ok and t.objective is not None)
        done = (t for t in done if not (t.stopped_early or t.violated))
        return max(done, key=lambda t: (*self.merits(t), -t.number), default=None)

    @property
    def no_best(self) -> str:
        ran = [t for t in self.trials.values() if t.violated]
        if not ran:
            return "no trial succeeded"
        bounds = {bound.key: bound for bound in self.subject_to}

        def beyond(trial: Trial) -> float:
            return max(
                bounds[key].excess(value) / (abs(bounds[key].value) or 1.0)
                for key, value in trial.bounded.items()
            )

        nearest = min(ran, key=beyond)
        satisfied = ", ".join(bound.text for bound in self.subject_to)
        return (
            f"none of {quantities.counted(len(ran), 'success')} satisfies {satisfied}; the nearest "
            f"is trial {nearest.number}: {', '.join(nearest.violated)}"
        )

    def check_bounds(self, trial: Trial, bounded: Mapping[str, float]) -> None:
        """Set a trial's metrics that have bounds, and which bounds it violates."""
        trial.bounded = bounded if trial.ok else {}
        said = (b.violation(bounded[b.key]) for b in self.subject_to if b.key in trial.bounded)
        trial.violated = tuple(words for words in said if words)

    def comparable(self) -> list[Trial]:
        """Successes within the bounds with a finite value of every objective, by number.

        Empty with one objective.
        """
        if len(self.goals) == 1:
            return []
        keys = [key for key, _ in self.goals]
        done = (t for t in self.ended if t.ok and not (t.stopped_early or t.violated))
        return [t for t in done if all(math.isfinite(t.objectives.get(k, math.nan)) for k in keys)]

    def objectives_text(self, trial: Trial) -> str:
        """A success's objective, or all of several: ``1,234 tokens/s, 8 nodes``."""
        values = trial.objectives or {self.objective_key: trial.objective or 0.0}
        return ", ".join(
            [*(units.text(key, values[key]) for key, _ in self.goals), *trial.violated]
        )

    def attempt_text(self, trial: Trial, attempt: Attempt) -> str | None:
        """The end of a repeat or of an early stop in words; None for any other end."""
        key = self.objective_key
        reached = units.text(key, attempt.objective or 0.0)
        if attempt.repeat and attempt.kind == "ok":
            middle = quantities.number(units.scaled(key, trial.objective or 0.0))
            middle = f"median of {len(trial.measurements)}: {middle}"
            return f"repeated {reached}; {middle}"
        if attempt.stopped_early:
            return f"stopped  {reached}; {attempt.message.removeprefix('stopped early: ')}"
        return None

    def front(self) -> list[Trial]:
        """The Pareto front: non-dominated successes, the best first objective first.

        The earliest of equal trials; empty with one objective.
        """
        trials = self.comparable()
        if not trials:
            return []
        merits = np.array([self.merits(trial) for trial in trials])
        found: dict[tuple[float, ...], Trial] = {}
        for index in np.flatnonzero(non_dominated(merits)):
            found.setdefault(tuple(merits[index]), trials[index])
        return [trial for _, trial in sorted(found.items(), reverse=True)]

    def front_lines(self) -> list[tuple[str, str]]:
        """Lines (label, text) on the first trials of the Pareto front; none with one objective."""
        trials = self.front()
        if not trials:
            return []
        successes = quantities.counted(len(self.comparable()), "success")
        lines = [("front", f"{len(trials)} of {successes} are Pareto-optimal")]
        for trial in trials[:SHOWN_FRONT]:
            lines.append(("", f"trial {trial.number:4d}  {self.objectives_text(trial)}"))
        if len(trials) > SHOWN_FRONT:
            lines.append(("", f"and {len(trials) - SHOWN_FRONT} more"))
        return lines


def extend(run: Run, records: Iterable[Mapping[str, Any]], after: int = 0) -> None:
    """Fold a journal's records into a Run, in their order; ``after``: number of lines before them.

    Raises RunError if a record is no event, or contradicts what precedes it.
    """
    for number, record in enumerate(records, start=after + 1):
        try:
            apply(run, events.time_of(record), events.from_record(record))
        except (KeyError, ValueError) as error:
            raise damaged(run.folder.journal_file, number, error) from None


def apply(run: Run, t: float, event: events.Event | None) -> None:
    """Fold an event at ``t``, in seconds since the epoch, into ``run``; None: of a later version.

    Raises ValueError if it contradicts what precedes it; ``run`` is unchanged.
    """
    match event:
        case events.Opened():
            identity = Identity.from_record(event.identity)
            if run.opened_t:
                run.left_t.append(run.last_t)
            run.space, run.fingerprint, run.seed = event.space, event.fingerprint, event.seed
            goals = event.objectives or [event.objective]
            run.goals = [(key, way == "maximize") for goal in goals for way, key in goal.items()]
            run.subject_to = tuple(Bound.of(text) for text in event.subject_to)
            run.launcher, run.closed = event.launcher, None
            run.identity = identity or run.identity  # simulated sessions have none
            run.opened_t.append(t)
        case events.Proposed():
            if event.trial in run.trials:
                raise ValueError(f"trial {event.trial} is proposed a second time")
            config, expected = dict(event.config), dict(event.expected)
            run.trials[event.trial] = Trial(event.trial, config, t, event.by, event.why, expected)
        case events.Started():
            trial = _proposed(run, event.trial)
            if event.attempt < trial.next_attempt:
                raise ValueError(f"attempt {event.attempt} at trial {event.trial} starts twice")
            attempt = Attempt(event.attempt, event.name, tuple(event.nodes), t)
            attempt.repeat = event.repeat
            trial.attempts.append(attempt)
        case events.Ended():
            _end(run, _proposed(run, event.trial), event, t)
        case events.Closed():
            run.closed, run.closed_code, run.closed_by = event.reason, event.code, event.limit
    run.last_t = t


def _proposed(run: Run, number: int) -> Trial:
    if number not in run.trials:
        raise ValueError(f"trial {number} was never proposed")
    return run.trials[number]


def _end(run: Run, trial: Trial, event: events.Ended, t: float) -> None:
    attempt = next((a for a in trial.attempts if a.number == event.attempt), None)
    if attempt is None and trial.attempts:
        raise ValueError(f"attempt {event.attempt} at trial {trial.number} was never started")
    if (attempt and attempt.kind is not None) or (event.final and trial.ended):
        raise ValueError(f"attempt {event.attempt} at trial {trial.number} ends twice")
    if attempt:
        # The next driver ends what a killed one left running, maybe hours later. The nodes are
        # known to have been held up to the last event of the attempt's own session.
        own_end = (left for left in run.left_t if left >= attempt.started_t)
        attempt.end(event, next(own_end, t))
        attempt.excused, attempt.stopped_early = event.excused, event.early
        attempt.steps, attempt.saved_node_s = event.steps, event.saved_node_s or 0.0
        if attempt.repeat:
            _revise(trial, attempt, event.stderr_tail)
            run.check_bounds(trial, trial.bounded)
            return
    trial.message, trial.stderr_tail = event.message, event.stderr_tail
    if event.final:
        trial.end(event, t)
        run.check_bounds(trial, event.bounded)


def _revise(trial: Trial, repeat: Attempt, stderr_tail: str) -> None:
    """Update a trial's result after a repeat.

    Its objective is the median of its measurements, because single runs on real clusters may take
    several times as long as others. The other metrics are those of the median measurement, or the
    means of the two middle ones, so that they belong together. A trial with more failed repeats
    than measurements failed.
    """
    complete = [a for a in trial.attempts if a.objective is not None and not a.stopped_early]
    if repeat.failed and trial.failed_repeats > len(complete):
        trial.kind, trial.objective, trial.result = repeat.kind, None, repeat.result
        trial.message = f"failed when it was measured again: {repeat.message}"
        trial.stderr_tail = stderr_tail
    elif complete:
        complete.sort(key=lambda a: a.objective or 0.0)
        low, high = complete[(len(complete) - 1) // 2], complete[len(complete) // 2]
        trial.objective = _between(low.objective, high.objective)
        trial.result = _between(low.result, high.result)
        trial.bounded = _between(low.bounded, high.bounded)
        trial.objectives = _between(low.objectives, high.objectives)


def _between(low: Any, high: Any) -> Any:
    """The mean of two numbers, or of each number of two records; the first of other values."""
    if isinstance(low, Mapping) and isinstance(high, Mapping):
        return {key: _between(value, high.get(key)) for key, value in low.items()}
    unlike = low != high and is_number(low) and is_number(high)
    return low + (high - low) / 2 if unlike else low


def read_run(directory: Path | str) -> Run:
    """Read ``runs/NAME``; raises RunError if it is not a run folder."""
    run = Run(Path(directory))
    extend(run, Lines(run.folder.journal_file))
    return run
