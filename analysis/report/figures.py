"""Data of the page's figures, as its script reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from analysis import units
from analysis.cost.model import Prediction
from analysis.cost.roofline import roofline
from analysis.metrics import Metrics
from analysis.prediction.held_out import CrossValidation
from analysis.prediction.pricing import Pricing
from analysis.report.encoding import encode
from analysis.report.forests import Sensitivity
from analysis.report.outcomes import blamed, ended_t, in_order, succeeded
from analysis.report.tables import KEY_METRICS
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from foundation.messages import printable
from foundation.quantities import significant
from trainer.plan.jobs import Array

LANES = 48  # nodes with a line of their own; for more the number of busy ones is drawn
MOMENTS = 400  # at which busy nodes are counted
MAX_PARAMETERS = 15  # whose effects are drawn
VALUES = 24  # of a parameter, whose mean effects are drawn
COUNTERS = {  # of a framework's reported memory: what each counts
    "allocated": "allocated by torch",
    "reserved": "reserved by torch",
    "device": "of the whole GPU",
}
# Digits of values that are only drawn: as the page shows. Metrics, which filters compare, have six;
# objectives eight, as in the tables up to ten million; factors of derived metrics all.
DIGITS = {**dict.fromkeys(("expected", "parts", "border"), 4), "objective": 8, "times": 17}
SHOWN_SHARE = 0.01  # of the longest bar: thinner parts are drawn as one
WIDE = 8.0  # ratio of largest to smallest objective above which an axis is logarithmic
NAMED = 12  # points of the Pareto front that are labelled with their trial


def embedded(record: Any) -> Markup:
    """A record as JSON that is safe within a script element."""
    text = json.dumps(_clean(record), separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _clean(value: Any, count: int = 6) -> Any:
    """Printable text, finite numbers with ``count`` digits, None for other values."""
    if isinstance(value, dict):
        return {printable(str(n)): _clean(x, DIGITS.get(n, count)) for n, x in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item, count) for item in value]
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool | int) or value is None:
        return value
    number = float(value)
    return significant(number, count) if math.isfinite(number) else None


def trials(run: Run, frame: pd.DataFrame, pricing: Pricing | None) -> dict[str, Any]:
    """The ended trials in the order in which they ended, in columns of equal length.

    ``frame`` is :func:`analysis.run.frame.frame_of` the run. ``time_h`` is up to the trial's end.
    Codes below 36 are texts of one character each; a metric derived from another one has that one's
    name, a power and a factor in place of values.
    """
    ended = in_order(run)
    key = run.objective_key
    kinds, kind_meaning = list(dict.fromkeys(str(t.kind) for t in ended)), blamed(run)
    policies = list(dict.fromkeys(t.by for t in ended))
    encoded = encode(frame.set_index("trial").loc[[t.number for t in ended]])
    objective = [units.scaled(key, t.objective or 0.0) if succeeded(t) else None for t in ended]
    parameters = {str(name): encoded.levels(str(name)) for name in encoded.values}
    metrics = _metrics(run, ended, pricing)
    if key in metrics and np.array_equal(metrics[key]["of"], np.array(objective, float), True):
        metrics[key]["of"] = {"name": "objective", "power": 1, "times": 1}
    return {
        "label": units.label(key),
        "unit": units.unit_or_name(key),
        "maximize": run.maximize,
        "parameters": {n: c | {"of": _signs(c["of"])} for n, c in parameters.items()},
        "metrics": metrics,
        "kinds": [[kind, *kind_meaning(kind)] for kind in kinds],
        "number": [t.number for t in ended],
        "kind": _signs([kinds.index(str(t.kind)) for t in ended]),
        "policies": policies,
        "by": _signs([policies.index(t.by) for t in ended]),
        "objective": objective,
        "early": [i for i, t in enumerate(ended) if t.stopped_early],
        "repeats": {
            i: [units.scaled(key, x) for x in t.measurements]
            for i, t in enumerate(ended)
            if len(t.measurements) > 1
        },
        "expected": _expected(run, ended),
        "time_h": [run.search_s(ended_t(t)) / 3600 for t in ended],
    }


def _expected(run: Run, ended: Sequence[Trial]) -> list[tuple[float | None, ...]]:
    """The predictions before trials ran, and both ends of their 95 % intervals; [] without any."""
    told = ("objective", "low", "high")
    rows = [
        [t.expected.get(n) for n in told] if {*told} <= t.expected.keys() else [None] * 3
        for t in ended
    ]
    shown = [[units.scaled(run.objective_key, x) for x in row] for row in rows]
    return [*zip(*shown, strict=True)] if any(row[0] is not None for row in rows) else []


def _signs(codes: Sequence[int]) -> str | Sequence[int]:
    """Codes below 36 as a text of one character each."""
    return codes if max(codes, default=0) > 35 else "".join(map(np.base_repr, codes, repeat(36)))


def _metrics(run: Run, ended: Sequence[Trial], pricing: Pricing | None) -> dict[str, Any]:
    """Metrics of the ended trials by name: a ``label`` and a column ``of`` values, or the metric
    from which they are derived, as ``times * values ** power``.

    Beside what trainers report: time per token, model FLOPs utilization, arithmetic intensity and
    attained rate (with the GPU's ``limits``), further objectives (energy where it is one),
    node-hours. NaN where nothing is known.
    """
    results = [Metrics(trial.result) for trial in ended]
    column = {key: _shown(key, [r.get(key) for r in results]) for key in KEY_METRICS}
    for key, _ in run.goals[1:]:
        column[key] = _shown(key, [trial.objectives.get(key) for trial in ended])
    roof, rows = None, [row for row, trial in enumerate(ended) if trial.ok]
    done = [ended[row] for row in rows]
    if pricing is not None and done:
        with suppress(ValueError):  # a fact is missing, or the space has other parameters
            roof = roofline(pricing.model, pricing.jobs_of([trial.config for trial in done]))
            attained = roof.attained_tflops(pricing.step_times_s(done))
            for name, values in (("intensity", roof.intensity), ("attained", attained)):
                column[name] = np.full(len(ended), np.nan)
                column[name][rows] = values
    if not run.origin:
        column["node_hours"] = np.array([t.node_seconds / 3600 for t in ended])
    found: dict[str, Any] = {
        name: {"label": units.label(name), "of": values.tolist()}
        for name, values in column.items()
        if np.isfinite(values).any()
    }
    peak = pricing.model.cluster.peak_bf16_tflops if pricing is not None else None
    for name, source, power, times in (
        ("us_per_token", "tokens_per_second", -1, 1e6),
        ("mfu", "tflops_per_gpu", 1, 1 / peak if peak else 0.0),
    ):
        if source in found and times:
            follows = {"name": source, "power": power, "times": times}
            found[name] = {"label": units.label(name), "of": follows}
    if roof and "attained" in found:
        found["attained"]["limits"] = {"peak_tflops": roof.peak_tflops, "gb_per_s": roof.gb_per_s}
    return found


def _shown(key: str, values: Sequence[float | None]) -> Array:
    """The values in the unit in which they are shown, NaN for None."""
    return np.array([units.scaled(key, value) for value in values], dtype=float)


def nodes(run: Run) -> dict[str, Any]:
    """Attempts by node and time; with many nodes, the number of busy ones over time."""
    spans: list[tuple[int, Attempt, float, float]] = []
    for trial in run.trials.values():
        for a in trial.attempts:
            start, end = run.search_s(a.started_t), run.search_s(a.ended_t or run.last_t)
            spans.append((trial.number, a, start, end))
    names = sorted({node for _, attempt, _, _ in spans for node in attempt.nodes})
    end_s = max((end for _, _, _, end in spans), default=0.0)
    if len(names) > LANES:
        at = np.linspace(0, end_s, MOMENTS)
        busy = np.zeros(MOMENTS)
        for _, attempt, start, end in spans:
            busy += len(attempt.nodes) * ((at >= start) & (at < end))
        return {"end_s": end_s, "count": len(names), "at_s": at.tolist(), "busy": busy.tolist()}
    lane, kind_meaning = {name: i for i, name in enumerate(names)}, blamed(run)
    bars = [
        [number, [lane[n] for n in a.nodes], start, end, a.kind or "running",
         kind_meaning(a.kind)[1] if a.kind else "gray"]
        for number, a, start, end in spans
    ]  # fmt: skip
    return {"end_s": end_s, "count": len(names), "names": names, "bars": bars}


def front(run: Run, listed: Collection[int]) -> dict[str, Any]:
    """Successes over the first two objectives; only ``listed`` trials are drawn.

    ``labels`` and ``up`` (maximized) of the objectives; ``log``: logarithmic axes of the first two;
    ``front`` and ``rest``: ``[trial, first, second, third?]`` of each point; ``counts`` of both;
    ``named``: labelled points of the front; ``steps``, with two objectives: (second, first) of the
    line of the best first objective at no worse a second one.
    """

    def shown(trial: Trial) -> list[float]:
        return [units.scaled(key, trial.objectives[key]) for key, _ in run.goals]

    best, every = run.front(), run.comparable()
    numbers = {trial.number for trial in best}
    drawn = [t for t in best if t.number in listed]
    rest = [t for t in every if t.number in listed and t.number not in numbers]
    columns = list(zip(*map(shown, every), strict=True))
    _, second_up = run.goals[1]
    points = sorted(((p[1], p[0]) for p in map(shown, drawn)), reverse=second_up)
    return {
        "labels": [units.label(key) for key, _ in run.goals],
        "up": [up for _, up in run.goals],
        "log": [min(c) > 0 and max(c) / min(c) > WIDE for c in columns[:2]],
        "front": [[t.number, *shown(t)] for t in drawn],
        "rest": [[t.number, *shown(t)] for t in rest],
        "counts": [len(best), len(every) - len(best)],
        "named": NAMED,
        "steps": points if len(run.goals) == 2 else [],
    }


def effects(found: Sensitivity) -> list[dict[str, Any]]:
    """Mean |SHAP| per parameter, largest first, with its interval and each value's mean SHAP."""
    rows = []
    for name, mean in found.mean_abs.head(MAX_PARAMETERS).items():
        column = found.encoded.values.columns.get_loc(name)
        values = found.encoded.values[name]
        inactive = found.encoded.inactive[name]
        shap = found.shap[:, column]
        each = [
            [found.encoded.words[str(name)][value], shap[(values == value).to_numpy()].mean()]
            for value in sorted(values[~inactive].unique())
        ]
        if len(each) > VALUES:
            each = [each[i] for i in np.linspace(0, len(each) - 1, VALUES).astype(int)]
        low, high = (found.interval[edge].to_dict()[name] for edge in ("low", "high"))
        rows.append({"name": name, "mean": mean, "low": low, "high": high, "values": each})
    return rows


def parts(validation: CrossValidation, listed: Sequence[int]) -> dict[str, Any]:
    """Predicted times of the listed trials by part, and measured ones, in microseconds a token.

    Steps of unlike global batches cannot be compared: the longer one may be the faster.
    """
    each_us = us_per_token(validation.prediction)
    time = {k: v * each_us for k, v in validation.prediction.time.as_dict().items() if v.max() > 0}
    place = {number: row for row, number in enumerate(validation.trials)}
    rows = {n: place[n] for n in listed if n in place}
    return {
        "names": [name.replace("_", " ") for name in time],
        "of": {n: [float(part[row]) for part in time.values()] for n, row in rows.items()},
        "measured": {n: float((validation.measured_s * each_us)[row]) for n, row in rows.items()},
    }


def us_per_token(prediction: Prediction) -> Array:
    """Microseconds per token for each second of a step; shape (n,)."""
    jobs = prediction.jobs
    return np.asarray(1e6 / (jobs.global_batch * jobs.model.seq_length))


def stacks(validation: CrossValidation, listed: Sequence[int]) -> dict[str, Any]:
    """Bars of predicted memory and time by part, by the model calibrated with the run.

    Memory is what the framework's counter counts, so that it compares with what it reported.

    Returns ``labels`` of the trials; ``memory`` (GiB) and ``time`` (microseconds a token):
    ``parts`` by name, in the order in which they are stacked, and ``measured``; ``counted``: what
    memory is; ``limit``: GiB of one GPU, where all of it is counted.
    """
    rows = [validation.trials.index(number) for number in listed]
    prediction, model = validation.prediction, validation.prediction.model
    counter = model.framework.reports
    memory = {
        name: part[rows] / units.GIB
        for name, part in prediction.memory.as_dict().items()
        if counter == "device" or name != "framework"  # which is outside torch's allocator
    }
    each_us = us_per_token(prediction)
    time = {name: (part * each_us)[rows] for name, part in prediction.time.as_dict().items()}
    return {
        "labels": [f"trial {number}" for number in listed],
        "counted": COUNTERS[counter],
        "limit": model.memory_limit_bytes / units.GIB if counter == "device" else 0,
        "memory": _stack(memory, validation.measured_bytes[rows] / units.GIB),
        "time": _stack(time, (validation.measured_s * each_us)[rows]),
    }


def _stack(parts: Mapping[str, Array], measured: Array) -> dict[str, Any]:
    listed = {name.replace("_", " "): part.tolist() for name, part in seen(parts).items()}
    return {"parts": listed, "measured": measured.tolist()}


def seen(parts: Mapping[str, Array]) -> dict[str, Array]:
    """The parts that are thick enough to be seen, and the sum of the others."""
    least = SHOWN_SHARE * float(np.max(sum(parts.values())))
    shown = {name: v for name, v in parts.items() if v.max() >= least}
    rest = [v for name, v in parts.items() if name not in shown and v.max() > 0]
    return {**shown, "other": np.sum(rest, axis=0)} if rest else shown
