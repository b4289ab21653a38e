"""A trial's result: the trainer's statement, validated, and shortened for the journal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.files import FileError, MissingFileError, machine_numbers, parse_json, read_bytes
from foundation.messages import shown
from slurm.logs.apart import read_apart
from slurm.logs.patterns import FoundNothingError
from slurm.logs.text import objects_after
from slurm.outcome.kinds import STATUSES
from slurm.outcome.step_log import StepLog, steps_in
from slurm.trial import TrialSpec

RESULT_NAME = "result.json"
MAX_RESULT_BYTES = 32 << 20  # a larger result is not read
KEPT_BYTES = 64 << 10  # in the journal, of each result
KEPT_ITEMS, KEPT_KEYS, KEPT_CHARACTERS, _KEY_CHARACTERS = 1000, 1000, 1000, 200
LEFT_OUT = "left_out"  # key that names the parts of a result that were not kept

Result = Mapping[str, Any]


def find_result(directory: Path, stdout: str) -> tuple[Result | None, str]:
    """The trainer's statement and "", or None and the reason; ``stdout`` has uncut lines."""
    try:
        return _parse(read_bytes(directory / RESULT_NAME, MAX_RESULT_BYTES), RESULT_NAME)
    except MissingFileError:
        pass
    except FileError as error:
        return None, str(error).replace(shown(directory / RESULT_NAME), RESULT_NAME, 1)
    if printed := list(objects_after("MESHTUNE_RESULT", stdout)):
        return _parse(printed[-1], "MESHTUNE_RESULT")
    return None, f"neither {RESULT_NAME} nor a line MESHTUNE_RESULT"


def result_of_lines(
    spec: TrialSpec, stdout: str, logs: Sequence[str]
) -> tuple[Result | None, str, bool]:
    """The result from patterns, else from reported steps; or None and the reason.

    And whether the lines prove that the trial has made all its steps. ``stdout`` has uncut lines;
    ``logs``, which are searched for patterns, have cut ones.
    """
    steps = [step for step in steps_in(stdout) if step["step"] > spec.warmup_steps]
    result = StepLog.result(steps) if steps else None
    done = bool(steps) and steps[-1]["step"] == spec.total_steps
    if not spec.log:
        return result, "", done
    try:
        found, num_steps = read_apart(spec.log, logs, spec.warmup_steps, spec.world_size)
    except FoundNothingError as error:
        return result, str(error), done
    return {**(result or {}), **found}, "", done or num_steps == spec.total_steps


def kept_result(result: Result) -> Result:
    """The part of a result that the journal keeps: at most :data:`KEPT_BYTES` as JSON.

    The last 1,000 items of a list, the first 1,000 keys of an object, the first 1,000 characters of
    a text; if that is still too much, without the largest values. ``left_out`` names the rest.
    """
    left_out: list[str] = []
    small: dict[str, Any] = _kept(result, "", left_out)
    sizes = {key: len(json.dumps(key)) + len(json.dumps(value)) for key, value in small.items()}
    total = sum(sizes.values())
    for key in sorted(sizes, key=lambda key: -sizes[key]):
        if total <= KEPT_BYTES:
            break
        total -= sizes[key]
        del small[key]
        left_out.append(key)
    if left_out:
        more = len(left_out) - 20
        small[LEFT_OUT] = "; ".join(left_out[:20]) + (f"; and {more} more" if more > 0 else "")
    return small


def _kept(value: Any, name: str, left_out: list[str]) -> Any:
    if isinstance(value, Mapping):
        items = [(str(k), v) for k, v in value.items() if len(str(k)) <= _KEY_CHARACTERS]
        if len(value) > len(items[:KEPT_KEYS]):
            what = f"{name}: " if name else ""
            left_out.append(f"{what}{len(value) - len(items[:KEPT_KEYS])} of {len(value)} keys")
        start = f"{name}." if name else ""
        return {k: _kept(v, f"{start}{k}", left_out) for k, v in items[:KEPT_KEYS]}
    if isinstance(value, (list, tuple)):
        if len(value) > KEPT_ITEMS:
            left_out.append(f"{name}: {len(value) - KEPT_ITEMS:,} of {len(value):,} items")
        return [_kept(v, f"{name}[]", left_out) for v in value[-KEPT_ITEMS:]]
    if isinstance(value, str) and len(value) > KEPT_CHARACTERS:
        left_out.append(f"{name}: {len(value) - KEPT_CHARACTERS:,} of {len(value):,} characters")
        return value[:KEPT_CHARACTERS]
    return value


def _parse(text: str | bytes, what: str) -> tuple[Result | None, str]:
    try:
        result = parse_json(text, what)
    except FileError as error:
        return None, str(error)
    if not isinstance(result, dict):
        return None, f"{what} is not an object"
    status = result.get("status", "ok")
    if not isinstance(status, str) or status not in STATUSES:
        found = shown(repr(status), 80)
        return None, f"{what} has status {found}, not one of {', '.join(STATUSES)}"
    return machine_numbers(result), ""
