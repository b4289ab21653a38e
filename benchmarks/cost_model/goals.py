"""Goals of the model's accuracy, next to its results and those of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis.sweeps.record import Table
from benchmarks.printing import percent

from .evaluate import CALIBRATED, LEFT_OUT, Result, Scores
from .statements import Statement

# From papers, or from published snapshots of others' programs; not run here.
PUBLISHED = (
    "| of others, published or of a published snapshot, not run here | figure |\n"
    "|---|---|\n"
    "| vTrain (from traces of a GPU): time, A100 multi-node / single node | 14.7 % / 8.4 % |\n"
    "| Calculon (@caa4b11): time, A100 vTrain multi-node / single node | 15.3 % / 38.9 % |\n"
    "| Calculon: Spearman and regret of the top 1, A100 vTrain multi-node | 0.73, 1.3 % |\n"
    "| Calculon: time, BLOOM / Korthikanti (tuned on it) / Narayanan Table 1 "
    "| 30.1 % / 3.7 % / 10.3 % |\n"
    "| Calculon: memory, BLOOM, fp16 optimizer | 39 % too low |\n"
    "| Megatron-LM's, Calculon's: out of memory, right, on a sweep like the H100's "
    "| 77.2 %, 77.1 % |\n"
    "| Megatron-LM's, Calculon's: runnable, wrongly pruned | 27.2 %, 0 % |"
)


@dataclass(frozen=True)
class Figure:
    """One figure of a goal: its value, its text, and whether the goal is reached."""

    value: float
    text: str
    reached: bool


def at_most(value: float, limit: float) -> Figure:
    return Figure(value, percent(value), value <= limit)


def at_least(value: float, limit: float) -> Figure:
    return Figure(value, percent(value), value >= limit)


@dataclass(frozen=True)
class Goal:
    """A goal of tables of one kind.

    Attributes:
        text: the row's name.
        wanted: the goal in words.
        peer: the best known figure of others.
        applies: whether the goal is one of a table.
        scheme: of the result that is judged.
        figures: the judged figures from its scores.
        framework: whose rows are judged; empty: all.
    """

    text: str
    wanted: str
    peer: str
    applies: Callable[[Table], bool]
    scheme: str
    figures: Callable[[Scores], list[Figure]]
    framework: str = ""


def _kind(kind: str) -> Callable[[Table], bool]:
    return lambda table: table.form == kind


def _vtrain(several_nodes: bool) -> Callable[[Table], bool]:
    return lambda table: (
        table.form == "vtrain" and len(table) > 0 and (table.nodes.max() > 1) == several_nodes
    )


def _ranking(s: Scores, limit: float) -> Figure:
    return Figure(s.spearman, "" if math.isnan(s.spearman) else f"{s.spearman:.3f}",
                  s.spearman >= limit)  # fmt: skip


def _fitting(s: Scores) -> list[Figure]:
    if s.fitting is None:
        return []
    return [at_least(s.fitting.accuracy, 0.95), at_most(s.fitting.wrongly_pruned, 0.01)]


def _close(s: Scores) -> Figure:
    total = len(s.rankings)
    return Figure(s.close, f"{s.close} of {total}", s.close == total)


GOALS = (
    Goal("A100 vTrain, several nodes: time / Spearman", "<= 6 % / >= 0.85",
         "14.7 % (vTrain), 15.3 % / 0.73 (Calculon)", _vtrain(True), LEFT_OUT,
         lambda s: [at_most(s.time_error, 0.06), _ranking(s, 0.85)]),
    Goal("A100 vTrain, one node: time", "<= 8 %", "8.4 % (vTrain), 38.9 % (Calculon)",
         _vtrain(False), LEFT_OUT, lambda s: [at_most(s.time_error, 0.08)]),
    Goal("BLOOM, rows of the fp16 optimizer: memory", "<= 7 %", "36 % (llm-analysis)",
         _kind("bloom"), LEFT_OUT, lambda s: [at_most(s.memory_error, 0.07)],
         framework="megatron-deepspeed-2022"),
    Goal("BLOOM after 8 calibration rows: time", "<= 5 %", "", _kind("bloom"), CALIBRATED,
         lambda s: [at_most(s.time_error, 0.05)]),
    Goal("Sweep: out of memory, right / runnable, wrongly pruned", ">= 95 % / <= 1 %",
         "77 % (Megatron-LM, Calculon, on a like sweep)", _kind("sweep"), LEFT_OUT, _fitting),
    Goal("Sweep: Spearman, median / best of 8 within 5 %", ">= 0.93 / every landscape", "",
         _kind("sweep"), LEFT_OUT, lambda s: [_ranking(s, 0.93), _close(s)]),
    Goal("Sweep after 8 calibration trials: time", "<= 8 %", "", _kind("sweep"), CALIBRATED,
         lambda s: [at_most(s.time_error, 0.08)]),
)  # fmt: skip


def judged(table: Table, results: Sequence[Result], predictor: str) -> list[str]:
    """Rows in the table of goals for those that apply to this table."""
    rows = []
    for goal in GOALS:
        if not goal.applies(table):
            continue
        for result in results:
            if (result.predictor, result.scheme) != (predictor, goal.scheme):
                continue
            scores = result.by_framework.get(goal.framework, result.pooled)
            figures = goal.figures(scores)
            values = " / ".join(f.text for f in figures)
            reached = "yes" if figures and all(f.reached for f in figures) else "no"
            rows.append(
                f"| {goal.text} ({table.name}) | {goal.wanted} | {values} | {reached} "
                f"| {goal.peer} |"
            )
    return rows


def judged_statements(stated: Sequence[Statement], values: Sequence[float]) -> list[str]:
    """Rows in the table of goals for stated figures: largest and mean error by source."""
    errors = {
        source: [abs(v / s.published - 1) for s, v in zip(stated, values, strict=True)
                 if s.source == source]
        for source in dict.fromkeys(s.source for s in stated)
    }  # fmt: skip
    rows = []
    for source, found in errors.items():
        ratio = source in ("Xu", "Dai")
        largest, mean = max(found), sum(found) / len(found)
        reached = largest <= 0.1 and (ratio or mean <= 0.06)
        wanted = "each within 10 %" if ratio else "<= 10 % each, mean <= 6 %"
        rows.append(
            f"| {source}, {len(found)} stated figures, zero-shot: largest / mean error | {wanted} "
            f"| {percent(largest)} / {percent(mean)} | {'yes' if reached else 'no'} | |"
        )
    return rows


HEADER = "| | goal | measured | reached | best peer known |\n|---|---|---|---|---|"
