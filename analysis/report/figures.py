"""What the page's figures are drawn from: one record that its script reads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from analysis import units
from analysis.prediction.held_out import CrossValidation
from analysis.report import tables
from analysis.report.forests import Sensitivity
from analysis.report.trajectory import ended_t, idle_spans, search_time_s, succeeded
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial, meaning
from foundation.messages import printable
from foundation.quantities import value_text

LANES = 48  # nodes that have a line of their own; of more it is drawn how many are busy
MOMENTS = 400  # at which that is asked
MAX_PARAMETERS = 15  # whose effects are drawn
VALUES = 24  # of a parameter, whose mean effects are drawn


def embedded(record: Any) -> Markup:
    """A record as JSON that may stand in a script element: nothing in it ends one."""
    text = json.dumps(_clean(record), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _clean(value: Any) -> Any:
    """Text without escapes, numbers that JSON has, in six digits."""
    if isinstance(value, dict):
        return {printable(str(name)): _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool | int) or value is None:
        return value
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


def trials(run: Run) -> dict[str, Any]:
    """Every trial: its configuration, its end, when that was and what it cost.

    Columns of equal length, in the order in which trials ended; those that have not ended are left
    out. ``time_h`` and ``node_hours`` are sums up to the trial's end.
    """
    origin_t, idle = _clock(run)
    ended = sorted(
        (t for t in run.trials.values() if t.ended), key=lambda t: (ended_t(t), t.number)
    )
    varied, _ = tables.parameters(run)
    key = run.objective_key
    kinds = list(dict.fromkeys(str(t.kind) for t in ended))
    return {
        "label": units.label(key),
        "unit": units.unit(key) or units.name(key),
        "maximize": run.maximize,
        "parameters": {name: _column(ended, name) for name in varied},
        "kinds": [[kind, *meaning(kind)] for kind in kinds],
        "number": [t.number for t in ended],
        "kind": [kinds.index(str(t.kind)) for t in ended],
        "objective": [
            units.scaled(key, t.objective or 0.0) if succeeded(t) else None for t in ended
        ],
        "early": [i for i, t in enumerate(ended) if t.stopped_early],
        "repeats": {
            i: [units.scaled(key, x) for x in t.measurements]
            for i, t in enumerate(ended)
            if len(t.measurements) > 1
        },
        "expected": {i: told for i, t in enumerate(ended) if (told := _expected(run, t))},
        "time_h": [search_time_s(ended_t(t), origin_t, idle) / 3600 for t in ended],
        "node_hours": (np.cumsum([t.node_seconds for t in ended]) / 3600).tolist(),
    }


def _column(ended: Sequence[Trial], name: str) -> dict[str, list[Any]]:
    """A parameter's values from low to high, and the place of each trial's among them."""
    cells = [t.config.get(name) for t in ended]
    distinct = list(dict.fromkeys(cells))
    numbers = all(isinstance(v, bool | int | float) or v is None for v in distinct)
    if numbers:
        distinct.sort(key=lambda v: (v is not None, v or 0))
    else:
        distinct.sort(key=lambda v: (v is not None, str(v)))
    place = {value: i for i, value in enumerate(distinct)}
    return {"values": [value_text(v) for v in distinct], "of": [place[v] for v in cells]}


def _expected(run: Run, trial: Trial) -> list[float] | None:
    """The objective that was expected before the trial ran, and its 95 % interval."""
    if not {"objective", "low", "high"} <= trial.expected.keys():
        return None
    return [
        units.scaled(run.objective_key, trial.expected[n]) for n in ("objective", "low", "high")
    ]


def nodes(run: Run) -> dict[str, Any]:
    """What ran where, or how many nodes were busy where there are many of them."""
    origin_t, idle = _clock(run)
    spans: list[tuple[int, Attempt, float, float]] = []
    for trial in run.trials.values():
        for a in trial.attempts:
            start = search_time_s(a.started_t, origin_t, idle)
            end = search_time_s(a.ended_t or run.last_t, origin_t, idle)
            spans.append((trial.number, a, start, end))
    names = sorted({node for _, attempt, _, _ in spans for node in attempt.nodes})
    end_s = max((end for _, _, _, end in spans), default=0.0)
    if len(names) > LANES:
        at = np.linspace(0, end_s, MOMENTS)
        busy = np.zeros(MOMENTS)
        for _, attempt, start, end in spans:
            busy += len(attempt.nodes) * ((at >= start) & (at < end))
        return {"end_s": end_s, "count": len(names), "at_s": at.tolist(), "busy": busy.tolist()}
    lane = {name: i for i, name in enumerate(names)}
    bars = [
        [number, [lane[n] for n in a.nodes], start, end, a.kind or "running",
         meaning(a.kind)[1] if a.kind else "gray"]
        for number, a, start, end in spans
    ]  # fmt: skip
    return {"end_s": end_s, "count": len(names), "names": names, "bars": bars}


def _clock(run: Run) -> tuple[float, list[tuple[float, float]]]:
    return (run.opened_t[0] if run.opened_t else 0.0), idle_spans(run)


def effects(found: Sensitivity, limit: int) -> list[dict[str, Any]]:
    """Of each parameter: mean |SHAP|, the largest first, its interval, each value's mean SHAP."""
    rows = []
    for name, mean in found.mean_abs.head(limit).items():
        column = found.encoded.values.columns.get_loc(name)
        values = found.encoded.values[name]
        inactive = found.encoded.inactive[name]
        shap = found.shap[:, column]
        each = [
            [found.encoded.word(str(name), value), shap[(values == value).to_numpy()].mean()]
            for value in sorted(values[~inactive].unique())
        ]
        if len(each) > VALUES:
            each = [each[i] for i in np.linspace(0, len(each) - 1, VALUES).astype(int)]
        low, high = (found.interval[edge].to_dict()[name] for edge in ("low", "high"))
        rows.append({"name": name, "mean": mean, "low": low, "high": high, "values": each})
    return rows


def parts(validation: CrossValidation, listed: Sequence[int]) -> dict[str, Any]:
    """Predicted step times by part, in seconds, of the listed trials; the measured beside them."""
    time = {k: v for k, v in validation.prediction.time.as_dict().items() if v.max() > 0}
    place = {number: row for row, number in enumerate(validation.trials)}
    rows = {n: place[n] for n in listed if n in place}
    return {
        "names": [name.replace("_", " ") for name in time],
        "of": {n: [float(part[row]) for part in time.values()] for n, row in rows.items()},
        "measured_s": {n: float(validation.measured_s[row]) for n, row in rows.items()},
    }
