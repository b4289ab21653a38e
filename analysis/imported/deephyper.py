"""DeepHyper's ``results.csv`` as a run: one trial per row, ``p:`` parameters, ``m:`` metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.imported.times import with_times
from analysis.run.fold import Run
from analysis.run.trial import Trial
from analysis.sweeps.record import number_column, read_csv
from foundation.documents import plain_scalar
from slurm import Kind

LAUNCHER = "DeepHyper"
_TIMES = (("m:timestamp_start", "m:timestamp_end"), ("m:timestamp_submit", "m:timestamp_gather"))
"""Columns of begin and end, in s; the first pair that every row has is used."""
_FAILED = "F"  # the objective of a failure begins with it


def results_run(path: Path) -> Run | None:
    """The trials of a ``results.csv`` in its order; None for another table.

    DeepHyper maximizes every objective. Raises TableError with the line and column of a wrong one.
    """
    frame = read_csv(path)
    has_objective = bool({"objective", "objective_0"} & {*frame})
    if not has_objective or not any(n.startswith("p:") for n in map(str, frame)):
        return None
    keys = ["objective"]
    if "objective" not in frame:
        keys = [key for i in range(frame.shape[1]) if (key := f"objective_{i}") in frame]
    failed = frame[keys[0]].str.startswith(_FAILED)
    kept = frame.assign(**{key: frame[key].mask(failed, "") for key in keys})
    values = np.stack([number_column(kept, key, path) for key in keys], axis=1)
    begun_s, ended_s = _times_s(frame, path)
    numbers = _numbers(frame)
    goals, origin = [(key, True) for key in keys], f"DeepHyper's {path}"
    run = Run(path, _name(path), launcher=LAUNCHER, goals=goals, origin=origin)
    names, rows = [*map(str, frame)], frame.to_numpy(str).tolist()
    for row, number in enumerate(numbers):
        cells = dict(zip(names, rows[row], strict=True))
        kind, message = _end(cells[keys[0]], values[row], cells.get("job_status", ""))
        trial = Trial(number, _named(cells, "p:"), float(begun_s[row]))
        trial.kind, trial.message, trial.ended_t = kind, message, float(ended_s[row])
        trial.result = _named(cells, "m:")
        found = dict(zip(keys, map(float, values[row]), strict=True)) if trial.ok else {}
        trial.objective = found.get(keys[0])
        trial.objectives = found if len(keys) > 1 else {}
        run.trials[number] = trial
    return with_times(run, known=bool(np.isfinite([begun_s, ended_s]).all()))


def _name(path: Path) -> str:
    """The file's name, or its folder's if it has DeepHyper's fixed name."""
    if path.stem != "results" or path.parent == Path():
        return path.stem
    return path.absolute().parent.resolve().name or path.stem


def _times_s(frame: pd.DataFrame, path: Path) -> tuple[Any, Any]:
    """Begin and end of each trial; nan where unknown."""
    pairs = [
        (number_column(frame, begun, path), number_column(frame, ended, path))
        for begun, ended in _TIMES
        if begun in frame and ended in frame
    ]
    unknown = np.full(len(frame), np.nan)
    whole = (pair for pair in pairs if np.isfinite(pair).all())
    return next(whole, (unknown, unknown))


def _numbers(frame: pd.DataFrame) -> list[int]:
    """DeepHyper's trial numbers; the rows' order if they are missing or not unique."""
    found = [text for text in frame.get("job_id", ()) if str(text).isdecimal()]
    several = len({*found}) == len(found) == len(frame)
    return [*map(int, found)] if several else [*range(len(frame))]


def _end(objective: str, values: Any, status: str) -> tuple[str, str]:
    """Kind and message of an end; a reason that is no kind of meshtune's is a crash."""
    if np.isfinite(values).all():
        return Kind.OK.value, ""
    if status == "CANCELLED":
        return Kind.CANCELLED.value, ""
    reason = objective.removeprefix(_FAILED).removeprefix("_")
    if reason in {kind.value for kind in Kind if kind is not Kind.OK}:
        return reason, ""
    return Kind.CRASH.value, reason or "no objective"


def _named(cells: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Values of columns with a prefix; a blank parameter is inactive, a blank metric missing."""
    found = {n.removeprefix(prefix): v for n, v in cells.items() if n.startswith(prefix)}
    words = {"True": "true", "False": "false", "nan": "null"}
    values = {n: plain_scalar(words.get(v.strip(), v.strip())) for n, v in found.items()}
    return values if prefix == "p:" else {n: v for n, v in values.items() if v is not None}
