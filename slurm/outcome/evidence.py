"""What a trial leaves: its result and its logs, read with distrust."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm.logs.patterns import FoundNothingError, metrics_of
from slurm.outcome.kinds import STATUSES
from slurm.outcome.step_log import EarlyStop, result_of_steps, steps_in
from slurm.outcome.texts import NO_TEXTS, LauncherTexts
from slurm.outcome.watch import STDERR_NAME, STDOUT_NAME, Termination, Watched
from slurm.trial import Lease, TrialSpec

RESULT_NAME = "result.json"
_READ_BYTES = 8 << 20  # of a log, from its end; what decides a trial is near it
_RESULT_LINE = re.compile(r"(?m)(?:^|\s)MESHTUNE_RESULT\s+(\{.*\})\s*$")


@dataclass(frozen=True)
class Evidence:
    """All that is known of an ended trial."""

    termination: Termination
    elapsed_s: float
    early_stop: EarlyStop | None = None  # where that is how it ended
    exit_code: int | None = None
    result: Mapping[str, Any] | None = None
    complete: bool = False  # the result is the trainer's own statement, not read from its log
    no_result: str = ""  # why there is none
    stdout: str = ""
    stderr: str = ""
    nodes: tuple[str, ...] = ()
    timeout_s: float = float("inf")
    no_progress_timeout_s: float | None = None
    down_nodes: frozenset[str] = frozenset()  # of the lease's, as Slurm says
    stuck_nodes: tuple[str, ...] = ()  # processes there would not die
    severed: str = ""  # which process of the launcher's was killed by others: no code is known
    texts: LauncherTexts = NO_TEXTS  # by which the launcher's own lines are understood


def clear_attempt(directory: Path) -> None:
    """Remove what an earlier attempt left, so that it cannot pass for this one's."""
    for name in (RESULT_NAME, STDOUT_NAME, STDERR_NAME):
        (directory / name).unlink(missing_ok=True)


def gather(
    spec: TrialSpec,
    lease: Lease,
    watched: Watched,
    exit_code: int | None,
    *,
    down_nodes: Iterable[str] = (),
    stuck_nodes: Iterable[str] = (),
    severed: str = "",
    texts: LauncherTexts = NO_TEXTS,
) -> Evidence:
    """Collect the evidence of a trial whose processes are gone."""
    stdout, stderr = read_end(spec.directory / STDOUT_NAME), read_end(spec.directory / STDERR_NAME)
    result, no_result = find_result(spec.directory, stdout)
    complete = result is not None
    # A log that was cut short has figures of some step, not the trial's.
    cut_short = watched.termination is Termination.STOPPED_EARLY or severed
    if result is None and not cut_short:
        result, why = _from_lines(spec, stdout, stderr)
        no_result = f"{no_result}; {why}" if why else no_result
    return Evidence(
        termination=watched.termination,
        elapsed_s=watched.elapsed_s,
        early_stop=watched.early_stop,
        exit_code=exit_code,
        result=result,
        complete=complete,
        no_result=no_result,
        stdout=stdout,
        stderr=stderr,
        nodes=lease.nodes,
        timeout_s=spec.timeout_s,
        no_progress_timeout_s=spec.no_progress_timeout_s,
        down_nodes=frozenset(down_nodes).intersection(lease.nodes),
        stuck_nodes=tuple(stuck_nodes),
        severed=severed,
        texts=texts,
    )


def find_result(directory: Path, stdout: str) -> tuple[Mapping[str, Any] | None, str]:
    """The trainer's statement and "", or None and what is wrong."""
    try:
        return _parse((directory / RESULT_NAME).read_text(), RESULT_NAME)
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        return None, f"{RESULT_NAME} cannot be read: {error}"
    lines = _RESULT_LINE.findall(stdout)
    if lines:
        return _parse(lines[-1], "MESHTUNE_RESULT")
    return None, f"neither {RESULT_NAME} nor a line MESHTUNE_RESULT"


def _parse(text: str, what: str) -> tuple[Mapping[str, Any] | None, str]:
    try:
        result = json.loads(text)
    except (ValueError, RecursionError) as error:
        return None, f"{what} is not JSON: {error}"
    if not isinstance(result, dict):
        return None, f"{what} is not an object"
    status = result.get("status", "ok")
    if not isinstance(status, str) or status not in STATUSES:
        return None, f"{what} has status {status!r}, not one of {', '.join(STATUSES)}"
    return result, ""


def _from_lines(spec: TrialSpec, *logs: str) -> tuple[Mapping[str, Any] | None, str]:
    """What the lines of steps say, and before them the patterns; or None and what is wrong."""
    source = spec.result
    steps = [step for step in steps_in(logs[0]) if step["step"] > source.warmup_steps]
    result = result_of_steps(steps) if steps else None
    if not source.log:
        return result, ""
    try:
        found = metrics_of(source.log, logs, source.warmup_steps, spec.world_size)
    except FoundNothingError as error:
        return result, str(error)
    return {**(result or {}), **found}, ""


def read_end(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
