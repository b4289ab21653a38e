"""Metrics in the logs of a trainer that writes no result, found by patterns.

Each line that a pattern matches belongs to one step. A trial's metric is the median over its steps
after the warm-up, without steps that an evaluation or a checkpoint has disturbed.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from slurm.logs.quantities import Context, QuantityError, quantity
from slurm.logs.text import READ_BYTES

Reduction = Literal["median", "mean", "last", "first", "min", "max", "sum"]
REDUCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "mean": statistics.fmean,
    "last": lambda values: values[-1],
    "first": lambda values: values[0],
    "min": min,
    "max": max,
    "sum": math.fsum,
}
PAUSES = (
    r"(?i)\b(?:sav(?:ed|ing)\b.{0,40}\bcheckpoint|checkpoint\b.{0,40}\bsav(?:ed|ing)\b"
    r"|evaluat(?:e|es|ed|ing|ion)\b|validation loss)"
)
"""Lines of evaluations and checkpoints, whose time the next step's time includes."""
MOST_STEPS = 1e7
"""In a run: a larger total is not credible."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# Groups of thousands, or a decimal comma; more digits behind a first number are the next column.
_WITH_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+,\d{1,2}|0+,\d+")
# The comma ends a counter, or is the one in logging's time: step=5,812.4 ms, 10:00:00,123 tok/s
_ANOTHERS = re.compile(r"(?i)((?<![\w/-])(?<!per )(step|iter(ation)?|epoch)=|:\d\d:)\d+,[\d.]+$")
_LOSS = re.compile(
    r"(?i)(?:\b|(?<![A-Za-z])(?:lm|train|training|total)_)loss"
    r"['\"]?\s{0,4}[:=]?\s{0,4}['\"]?(nan|[-+]?inf|[-+]?\d)"
)


@dataclass(frozen=True)
class Pattern:
    """Finds one metric in a line. Users of a space file read these descriptions, too."""

    regex: str
    """the number is its group 'value', or else its first group; 'step' is the step's number. With a
    group 'seconds' the number is an amount, and the metric is the total amount divided by the total
    seconds"""
    unit: str | None = None
    """of the number, such as ms, GiB or K tokens/s; default the unit beside it in the log, or else
    the key's own; '' is always the key's own"""
    scale: float = 1.0
    """by which the number is multiplied"""
    reduce: Reduction = "median"
    """how the steps' numbers become one"""
    skip: int | None = None
    """first matches that do not count; default warmup_steps"""
    since_start: bool = False
    """numbers accumulate from the run's start: a step's is the difference"""
    whole: str = ""
    """regular expression with groups 'rate' (steps per second) and 'seconds' of the whole run, for
    a log with a line for several steps. Their number follows from the line's 'step', or from the
    'progress' of both patterns; without these the metric is the run's mean step time"""
    unless: str | None = None
    """a metric that replaces this one if it is found"""
    only_if: str = ""
    """text in the trainer's arguments or files: only with it the log has such a number"""


@dataclass(frozen=True)
class LogFormat:
    """Description of the metrics in a trainer's logs."""

    # by metric, for all variants of the trainer; the first one found in the log counts
    patterns: Mapping[str, Sequence[Pattern]] = field(default_factory=dict)
    # matches lines between two steps; the step after such a line does not count
    pauses: str = PAUSES
    rows_vary: bool = False
    """sequences are as long as the data's rows: tokens are counted, never derived from steps"""
    padded_by: str = ""
    """parameter: if set, the trainer's count of real tokens includes padding"""
    real_if: str = ""
    """text in the trainer's arguments or files: without it the token count includes padding"""

    def __bool__(self) -> bool:
        return bool(self.patterns)


@dataclass(frozen=True)
class Reading:
    metric: str  # its key
    value: float  # in the unit that its key names
    lines: int  # number of lines that have it
    counted: int  # number of those lines that the value is computed from
    last: str  # the last such line


class FoundNothingError(ValueError):
    """A log has no metric, or one that is not credible."""


@dataclass
class _Step:
    value: float
    number: int | None
    disturbed: bool
    seconds: float | None = None  # of an amount
    progress: float | None = None  # in any unit
    of: int = 1  # steps that the line covers: a logger may print every tenth


@dataclass
class _Steps:
    """The steps that one pattern has found so far."""

    metric: str
    pattern: Pattern
    regex: re.Pattern[str]
    found: list[_Step] = field(default_factory=list)
    line: str = ""  # the last one with a step
    disturbed: bool = False  # a pause came after it
    # the latest accumulated number and seconds of a pattern ``since_start``
    so_far: tuple[float, float] = (0.0, 0.0)
    # of the whole run, if ``whole`` has matched
    total: float = 0.0  # steps
    seconds: float = 0.0
    end: float = 0.0  # its progress

    def note_whole(self, run: re.Match[str]) -> None:
        self.seconds, self.end = _number(run, "seconds") or 0.0, _number(run, "progress") or 0.0
        self.total = (_number(run, "rate") or 0.0) * self.seconds

    def per_step(self) -> Sequence[_Step]:
        """The matched lines; a line that covers several steps gets their mean."""
        if not self.total < MOST_STEPS or round(self.total) <= len(self.found):
            return self.found
        if self.found[0].seconds is not None:  # amounts: their rate needs no number of steps
            return self.found
        numbers = [n for s in self.found if (n := self._last_of(s)) is not None]
        if len(numbers) < len(self.found):
            return [replace(s, value=self.seconds / self.total) for s in self.found]
        each = [max(1, last - before) for before, last in pairwise([0, *numbers])]
        return [
            replace(s, value=s.value / of, number=last, of=of)
            for s, last, of in zip(self.found, numbers, each, strict=True)
        ]

    def _last_of(self, line: _Step) -> int | None:
        """Number of a line's last step."""
        if line.number is not None or line.progress is None or not 0 <= line.progress <= self.end:
            return line.number
        return round(line.progress / self.end * self.total) if self.end else None


class LogMetrics:
    """The metrics of one trial's log, read line by line; its warm-up steps do not count."""

    def __init__(self, log: LogFormat, warmup_steps: int = 0, num_gpus: int = 1) -> None:
        self._warmup, self._num_gpus = warmup_steps, num_gpus
        self._steps = [
            _Steps(metric, pattern, re.compile(pattern.regex))
            for metric, variants in log.patterns.items()
            for pattern in variants
        ]
        self._pauses = re.compile(log.pauses) if log.pauses else None
        self._loss_is_finite: bool | None = None

    def read(self, line: str) -> None:
        """Read one line; raises FoundNothingError if a pattern's number is not credible."""
        line = _ANSI.sub("", line)
        for loss in _LOSS.finditer(line):
            self._loss_is_finite = loss[1][-1].isdigit()
        matched = False
        for steps in self._steps:
            if found := steps.regex.search(line):
                matched = True
                self._note(steps, found)
            if (whole := steps.pattern.whole) and (run := re.search(whole, line)):
                steps.note_whole(run)
        if not matched and self._pauses and self._pauses.search(line):
            for steps in self._steps:
                steps.disturbed = True

    @property
    def diverged(self) -> bool:
        """Whether the last loss in the log is NaN or infinite."""
        return self._loss_is_finite is False

    @property
    def num_steps(self) -> int:
        """Number of steps, by the last number of one; 0 if no line has a number.

        Not every step need have a line. Steps are counted from 1, unless a line has a 0.
        """
        numbers = [s.number for steps in self._steps for s in steps.found if s.number is not None]
        return max(numbers) + (min(numbers) == 0) if numbers else 0

    def readings(self) -> list[Reading]:
        """Every metric that was found, each by its first pattern that matched."""
        found: dict[str, Reading] = {}
        read = {steps.metric for steps in self._steps if steps.found}
        for steps in self._steps:
            metric, pattern = steps.metric, steps.pattern
            if metric not in found and steps.found and pattern.unless not in read:
                counted = self._counted(pattern, steps.per_step())
                value = _reduced(pattern, [s for s in counted for _ in range(s.of)])
                found[metric] = Reading(metric, value, len(steps.found), len(counted), steps.line)
        return list(found.values())

    def _note(self, steps: _Steps, found: re.Match[str]) -> None:
        metric, pattern = steps.metric, steps.pattern
        groups = found.re.groupindex
        which: int | str = "value" if "value" in groups else _first_unnamed(found.re)
        text = found[which]
        if text is None:
            return
        line = found.string
        if found.start() == found.start(which) and (cut := _cut_off(line, *found.span(which))):
            raise FoundNothingError(
                f"the pattern of {metric!r} matched {text!r}, the end of {cut!r}: let its group "
                "take the whole number, as ([0-9.,]+) does, or the pattern begin before it"
            )
        beside = Context(line[: found.start(which)], line[found.end(which) :])
        try:
            value = quantity(text, beside, metric, pattern.unit, self._num_gpus) * pattern.scale
        except QuantityError as error:
            raise FoundNothingError(str(error)) from None
        number = None
        if "step" in groups and found["step"] and found["step"].replace(",", "").isdecimal():
            number = int(found["step"].replace(",", ""))
        if number is not None and steps.found and steps.found[-1].number == number:
            return  # the same step, printed by another rank
        seconds = _number(found, "seconds")
        if pattern.since_start:
            before, steps.so_far = steps.so_far, (value, seconds or 0.0)
            value -= before[0]
            seconds = None if seconds is None else seconds - before[1]
        progress = _number(found, "progress")
        steps.found.append(_Step(value, number, steps.disturbed, seconds, progress))
        steps.line, steps.disturbed = line, False

    def _counted(self, pattern: Pattern, steps: Sequence[_Step]) -> list[_Step]:
        """The steps after the warm-up; at least the last one."""
        skip = self._warmup if pattern.skip is None else pattern.skip
        if pattern.skip is None and steps[0].number is not None:
            counted = [s for s in steps if s.number is not None and s.number - s.of >= skip]
        else:
            counted = list(steps[min(skip, len(steps) - 1) :])
        calm = [s for s in counted if not s.disturbed]
        return calm or counted or list(steps[-1:])


def _reduced(pattern: Pattern, steps: Sequence[_Step]) -> float:
    """One value of the steps that count; of amounts, their rate."""
    timed_s = [s.seconds for s in steps if s.seconds is not None]
    if not timed_s:
        return REDUCTIONS[pattern.reduce]([s.value for s in steps])
    amount, total_s = math.fsum(s.value for s in steps), math.fsum(timed_s)
    return amount / total_s if total_s > 0 else math.nan


def read_logs(
    log: LogFormat, texts: Sequence[str], warmup_steps: int = 0, num_gpus: int = 1
) -> tuple[Mapping[str, Any], int]:
    """A trial's result from the first log that has a metric, standard output before error.

    Its ``status`` is ``diverged`` if the last loss is not finite. And the number of steps in the
    logs, 0 if their lines have no numbers of steps.

    Raises FoundNothingError if there is no metric, or one that is not credible.
    """
    result: dict[str, Any] = {}
    diverged, num_steps = False, 0
    for text in texts:
        reader = LogMetrics(log, warmup_steps, num_gpus)
        for line in text.splitlines():
            reader.read(line)
        diverged, num_steps = diverged or reader.diverged, max(num_steps, reader.num_steps)
        result = {**{one.metric: one.value for one in reader.readings()}, **result}
    if diverged:
        message = "the last loss in its log is not finite"
        return {"status": "diverged", "message": message}, num_steps
    if not result:
        raise FoundNothingError(
            f"no pattern matched ({', '.join(log.patterns)}) in the last {READ_BYTES >> 20} MiB of "
            "standard output and error, which alone are read"
        )
    return result, num_steps


def _number(found: re.Match[str], group: str) -> float | None:
    """The number in a group; None if there is no such group, or none was found."""
    text = found[group] if group in found.re.groupindex else None
    try:
        return None if text is None else float(text)
    except ValueError:
        raise FoundNothingError(f"{group}: found {text!r}, which is no number") from None


def _cut_off(line: str, start: int, end: int) -> str:
    """The longer number with commas that this part of a line ends; "" if there is none."""
    head = line[:start].rstrip("0123456789.,")
    whole = line[len(head) : end]
    cut = line[:start].endswith(",") and not _ANOTHERS.search(head[-80:] + whole)
    return whole if cut and _WITH_COMMAS.fullmatch(whole) else ""


def _first_unnamed(regex: re.Pattern[str]) -> int:
    """The first group without a name; the first of all if each has one."""
    named = set(regex.groupindex.values())
    return next((i for i in range(1, regex.groups + 1) if i not in named), 1)
