"""The printed Markdown tables, and the content of the JSON file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analysis.sweeps.record import Table
from benchmarks.cost_model.failures import not_memory
from benchmarks.printing import percent

from .evaluate import Result, Scores
from .metrics import BINS, median
from .statements import Statement

HEADER = (
    "| predictor | scheme | rows of | n | time error, mean (median) | bias | in 95 % | Spearman "
    "| regret, top 1 | top 8 | top 8 within 5 % | of the ten ranked first, among the ten fastest: "
    "median (least) | memory error | out of memory: right | wrongly pruned |\n" + "|---" * 15 + "|"
)


def line(name: str, scheme: str, rows: str, s: Scores) -> str:
    """One row of a table of scores."""
    error = percent(s.time_error)
    if error:
        error += f" ({percent(s.time_error_median)})"
    close = f"{s.close} of {len(s.rankings)}" if s.rankings else ""
    right = pruned = ""
    if s.fitting is not None and s.fitting_memory is not None:
        right = f"{percent(s.fitting.accuracy)} ({percent(s.fitting_memory.accuracy)})"
        pruned = percent(s.fitting.wrongly_pruned)
    correlation = "" if math.isnan(s.spearman) else f"{s.spearman:.3f}"
    cells = [
        *(name, scheme, rows, str(s.rows), error, percent(s.time_bias, signed=True)),
        *(percent(s.time_covered), correlation, percent(s.regret_1), percent(s.regret_top)),
        *(close, _ten(s)),
        *(percent(s.memory_error), right, pruned),
    ]
    return f"| {' | '.join(cells)} |"


def _ten(s: Scores) -> str:
    known = [r.ten for r in s.rankings if not math.isnan(r.ten)]
    return f"{median(known):.3g} ({min(known):.3g})" if known else ""


def lines(result: Result, folds: bool) -> Iterable[str]:
    """The rows of one predictor and scheme: all, by framework and, if ``folds``, by fold."""
    yield line(result.predictor, result.scheme, "all", result.pooled)
    for framework, scores in result.by_framework.items():
        yield line(result.predictor, result.scheme, framework, scores)
    if folds and len(result.folds) > 1:
        for name, scores in result.folds.items():
            yield line(result.predictor, result.scheme, name, scores)


def about(table: Table) -> str:
    """The lines above a table's scores."""
    said = [f"{len(table)} rows"]
    if table.clusters:
        said[0] += f" on {', '.join(sorted(table.clusters))}"
    if table.failed.any():
        said.append(
            f"{table.failed.sum()} failed, {not_memory(table).sum()} of them not for memory (a run "
            "that needs no less did train; the accuracy in brackets leaves them out)"
        )
    if table.memory_measure:
        said.append(f"memory by {table.memory_measure}")
    said += [f"left out: {count} ({reason})" for reason, count in table.left_out.items()]
    return "; ".join([*said, *table.notes])


def landscapes(result: Result) -> str:
    """Each landscape's ranking."""
    heads = ("landscape", "n", "Spearman", "regret, top 1", "top 8", "ten of ten")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    rows += [
        f"| {r.landscape} | {r.rows} | {r.spearman:.3f} | {percent(r.regret_1)} "
        f"| {percent(r.regret_top)} | {'' if math.isnan(r.ten) else f'{r.ten:.3g}'} |"
        for r in result.pooled.rankings
    ]
    return "\n".join(rows)


def reliability(result: Result) -> str:
    """Share of rows that ran by predicted probability; only failures for memory count.

    Nothing where no row failed.
    """
    fitting = result.pooled.fitting_memory
    if fitting is None:
        return ""
    heads = (f"{result.predictor}, {result.scheme}: probability to fit", "n", "mean", "ran")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for low, high, (count, stated, ran) in zip(BINS, BINS[1:], fitting.reliability, strict=False):
        rows.append(f"| {low:g} to {high:g} | {count} | {percent(stated)} | {percent(ran)} |")
    return "\n".join(rows)


def statements(stated: Sequence[Statement], values: Mapping[str, Sequence[float]]) -> str:
    """Stated figures beside the predicted ones: TFLOP/s of a GPU, or ratios."""
    rows = [
        f"| source | figure | stated | {' | '.join(values)} |",
        "|---" * (3 + len(values)) + "|",
    ]
    for index, s in enumerate(stated):
        cells = [
            "" if math.isnan(v[index]) else
            f"{v[index]:.3g} ({percent(v[index] / s.published - 1, signed=True)})"
            for v in values.values()
        ]  # fmt: skip
        rows.append(f"| {s.source} | {s.name} | {s.published:.4g} | {' | '.join(cells)} |")
    return "\n".join(rows)


def statements_json(
    stated: Sequence[Statement], values: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """The same, for a file."""
    return {
        "statements": [
            {
                "source": s.source,
                "name": s.name,
                "published": s.published,
                **{name: _plain(predicted[index]) for name, predicted in values.items()},
            }
            for index, s in enumerate(stated)
        ]
    }


def as_json(table: Table, results: Sequence[Result]) -> dict[str, Any]:
    """All metrics of one table; those that do not exist are null."""
    return {
        "table": table.name,
        "kind": table.form,
        "rows": len(table),
        "left_out": dict(table.left_out),
        "results": [_plain(asdict(result)) for result in results],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
