"""Steps that a running trial reports, and early stopping by them.

A trainer takes part in early stopping by printing a line ``MESHTUNE_STEP {json}`` from one rank
after each step. The driver decides; launchers only ask.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.files import FileError, is_number, machine_numbers, parse_json, read_from
from slurm.logs.text import objects_after, unified
from slurm.trial import STDERR_NAME, STDOUT_NAME

StepReport = Mapping[str, Any]  # "step", counted from 1 with the warm-up, and its metrics
_WORD = "MESHTUNE_STEP"
_READ_BYTES = 4 << 20  # at a time
_LONGEST_LINE_BYTES = 1 << 16  # a longer line is no step


@dataclass(frozen=True)
class EarlyStop:
    """Why a trial is stopped before its last step, its result until then, and the time saved."""

    message: str
    result: Mapping[str, Any]
    saved_s: float = 0.0


StopRule = Callable[[Sequence[StepReport]], EarlyStop | None]
"""Called with all steps so far, from any thread; None: the trial continues."""


class GrowingLog:
    """A log that is still being written or not yet there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._partial = b""

    @staticmethod
    def of_trial(directory: Path) -> tuple[GrowingLog, GrowingLog]:
        """Its standard output, and its standard error."""
        return GrowingLog(directory / STDOUT_NAME), GrowingLog(directory / STDERR_NAME)

    def new_lines(self) -> str:
        """The lines that were completed since the last call, at most 4 MiB of them."""
        text, _, rest = (self._partial + self._new()).rpartition(b"\n")
        self._partial = rest[-_LONGEST_LINE_BYTES:]
        return text.decode(errors="replace")

    def rest(self) -> Iterator[str]:
        """All lines since the last call, in parts, and at last one that has no end; of a log that
        is no longer written, or as it is now."""
        before = -1
        while self._offset > before:
            before = self._offset
            yield self.new_lines()
        partial, self._partial = self._partial, b""
        yield partial.decode(errors="replace")

    def _new(self) -> bytes:
        """The new bytes of the log; none if it cannot be read now."""
        with suppress(OSError, FileError):  # not there yet, or a network file system hiccups
            size = self.path.lstat().st_size
            self._offset = self._offset if size >= self._offset else 0  # it was cut, or is new
            if size > self._offset:
                data = read_from(self.path, self._offset, _READ_BYTES, follow=False)
                self._offset += len(data)
                return unified(data)
        return b""


class StepLog(GrowingLog):
    """The steps in a log that is still being written or not yet there; keeps at most ``most``."""

    def __init__(self, path: Path, most: int | None) -> None:
        super().__init__(path)
        self._most = most
        self.steps: list[StepReport] = []

    def grew(self) -> bool:
        """Read the new part of the log; returns whether it has further steps."""
        before = len(self.steps)
        self._add(self.new_lines())
        return len(self.steps) > before

    def _add(self, text: str) -> None:
        last = self.steps[-1]["step"] if self.steps else 0
        self.steps += steps_in(text, last)
        if self._most is not None:
            del self.steps[self._most :]

    @classmethod
    def reported(cls, directory: Path) -> list[StepReport]:
        """All steps that a trial has reported until now."""
        log = cls(directory / STDOUT_NAME, most=None)
        for text in log.rest():
            log._add(text)
        return log.steps

    @staticmethod
    def result(steps: Sequence[StepReport]) -> dict[str, Any]:
        """The result of a trial with these steps: medians of the numbers that all of them have.

        But the maximum of ``*_bytes`` and the last ``loss``; ``step_time_s`` also lists all steps.
        """
        result: dict[str, Any] = {"status": "ok"}
        for key in (key for key in steps[0] if key != "step"):
            values: list[float] = [v for step in steps if is_number(v := step.get(key))]
            if len(values) < len(steps):
                continue
            if key.endswith("_bytes"):
                result[key] = max(values)
            elif key == "loss":
                result[key] = values[-1]
            else:
                result[key] = statistics.median(values)
            if key == "step_time_s":
                result[key] = {"median": result[key], "all": values}
        return result


def steps_in(text: str, last: int = -1) -> list[StepReport]:
    """The steps in a log after the ``last`` known one, each once.

    Several ranks may print the same step, and an earlier part of the log may be repeated.
    """
    steps: list[StepReport] = []
    for said in objects_after(_WORD, text):
        if (step := _parsed(said)) and step["step"] > last:
            last = step["step"]
            steps.append(step)
    return steps


def _parsed(said: str) -> dict[str, Any] | None:
    if len(said) > _LONGEST_LINE_BYTES:
        return None
    try:
        step = machine_numbers(parse_json(said, _WORD))
    except FileError:
        return None
    number = step.get("step") if isinstance(step, dict) else None
    return step if type(number) is int else None
