"""A running trial's word on its steps, and the early end of one that is too slow.

A trainer that wants to be stopped early when it is too slow prints, from one rank, a line
``MESHTUNE_STEP {json}`` after each step. Who decides is the driver; launchers only ask.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

StepReport = Mapping[str, Any]  # "step", counted from 1 with the warm-up, and figures of that step
_LINE = re.compile(rb"(?m)(?:^|\s)MESHTUNE_STEP\s+(\{.*\})\s*$")
_READ_BYTES = 4 << 20  # at a time, of a log that grows faster than it is read


@dataclass(frozen=True)
class EarlyStop:
    """Why a trial is stopped before its last step, its figures until then, and what that saves."""

    message: str
    result: Mapping[str, Any]
    saved_s: float = 0.0


StopRule = Callable[[Sequence[StepReport]], EarlyStop | None]
"""Asked with all steps so far, from any thread; None: the trial goes on."""


class StepLog:
    """The steps in a log that is still being written.

    Args:
        path: need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.steps: list[StepReport] = []
        self._path = path
        self._offset = 0
        self._partial = b""
        self._last = 0

    def grew(self) -> bool:
        """Read what is new; whether there are more steps than before."""
        before = len(self.steps)
        try:
            if self._path.stat().st_size <= self._offset:
                return False
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except OSError:  # not there yet, or a network file system hiccups
            return False
        self._offset += len(data)
        text, newline, self._partial = (self._partial + data).rpartition(b"\n")
        if not newline:
            self._partial = text + self._partial
            return False
        for found in _LINE.finditer(text):
            self._note(found[1])
        return len(self.steps) > before

    def _note(self, line: bytes) -> None:
        step = _parsed(line)
        # Every rank may have printed it, or an earlier part of the log be there once more.
        if step and step["step"] > self._last:
            self._last = step["step"]
            self.steps.append(step)


def steps_in(text: str) -> list[StepReport]:
    """The steps that a whole log tells of, each once."""
    steps: list[StepReport] = []
    for found in _LINE.finditer(text.encode()):
        step = _parsed(found[1])
        if step and (not steps or step["step"] > steps[-1]["step"]):
            steps.append(step)
    return steps


def result_of_steps(steps: Sequence[StepReport]) -> dict[str, Any]:
    """The result of a trial that had these steps: medians of the numbers that all of them have.

    Of memory it is the most and of the loss the last; ``step_time_s`` has every step's besides.
    """
    result: dict[str, Any] = {"status": "ok"}
    for key in (key for key in steps[0] if key != "step"):
        values: list[float] = [v for step in steps if _is_number(v := step.get(key))]
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


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        step = json.loads(line)
    except (ValueError, RecursionError):
        return None
    number = step.get("step") if isinstance(step, dict) else None
    return step if isinstance(number, int) and not isinstance(number, bool) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
