"""``--json``: a command's results, for programs to read; remarks go to standard error."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Any

from foundation.files import finite

if TYPE_CHECKING:
    from analysis import Ranking, Run, Scaled, Trial
    from search_spaces import CheckReport
    from workflows.search.budget import Budget


VERSION = 1  # of what is printed; docs/guide/following.md lists the keys


def remarks(arguments: Namespace) -> AbstractContextManager[Any]:
    """A context in which printed lines are remarks: with ``--json`` they go to standard error."""
    return redirect_stdout(sys.stderr) if arguments.json else nullcontext()


def print_json(command: str, content: Mapping[str, Any]) -> None:
    """Print a command's JSON, with its schema first and null for infinite numbers and NaN.

    A version may gain keys; removing a key or changing its meaning makes a new version.
    """
    schema = {"schema": {"command": command, "version": VERSION}}
    print(json.dumps(finite(schema | {**content}), indent=2, allow_nan=False))


def of_check(report: CheckReport, expected: str) -> dict[str, Any]:
    """Counts of a space; ``expected`` says in words how many should fit."""
    return {
        "space": report.space.name,
        "configurations": report.raw,
        "valid": report.valid,
        "exact": report.exact,
        "removed": [
            {"rule": r.name, "text": r.text, "alone": r.alone, "in_order": r.in_order}
            for r in report.rules
        ],
        "notes": [*report.notes, *expected.splitlines()],
    }


def of_ranking(ranking: Ranking, explained: bool, tokens: float) -> dict[str, Any]:
    """A ranking, the best first; if ``explained`` with the parts of memory and time."""
    rows = _rows(ranking.prediction.columns() | ranking.goodput.columns(tokens))
    for i, (row, config) in enumerate(zip(rows, ranking.configs, strict=True)):
        row["config"] = config
        if explained:
            prediction = ranking.prediction
            row["memory_parts_bytes"] = {k: v[i] for k, v in prediction.memory.as_dict().items()}
            row["time_parts_s"] = {k: v[i] for k, v in prediction.time.as_dict().items()}
    return {
        "space": ranking.pricing.space.name,
        "priced": ranking.num_priced,
        "likely_to_fit": ranking.num_likely,
        "ranked_by": ranking.ranked_by,
        "tokens": tokens,
        "failures": ranking.pricing.failures.basis(),
        "warnings": ranking.warnings,
        "configurations": rows,
    }


def of_scaling(scaled: Scaled, tokens: float) -> dict[str, Any]:
    rows = _rows(scaled.prediction.columns() | scaled.goodput.columns(tokens))
    for i, row in enumerate(rows):
        row |= {"num_nodes": scaled.prediction.num_nodes[i], "efficiency": scaled.efficiency[i]}
    return {
        "scaling": scaled.mode,
        "config": scaled.config,
        "tokens": tokens,
        "failures": scaled.basis,
        "left_out": scaled.left_out,
        "sizes": rows,
    }


def of_run(run: Run, budget: Budget, now: float, state: str, running: bool) -> dict[str, Any]:
    """The content of ``meshtune status``; times in seconds."""
    from workflows.search.budget import node_hours, wall_time_s

    trials = sorted(run.trials.values(), key=lambda t: t.number)
    failed = Counter(trial.kind for trial in trials if trial.kind and not trial.ok)
    return {
        "run": run.where,
        "space": run.space,
        "launcher": run.launcher,
        "simulated": run.launcher == "simulate",
        "state": state,
        "running": running,
        "objectives": [{"maximize" if up else "minimize": key} for key, up in run.goals],
        **({"subject_to": [bound.text for bound in run.subject_to]} if run.subject_to else {}),
        "trials": {
            "ended": sum(t.ended for t in trials),
            "ok": sum(t.ok for t in trials),
            "failed": failed,
            "running": [t.number for t in trials if t.running],
            **({"crashed": again} if (again := [t.number for t in trials if t.crashes]) else {}),
            "budget": budget.trials,
        },
        "best": of_trial(run.best) if run.best else None,
        "front": [of_trial(trial) for trial in run.front()],
        "wall_time_s": wall_time_s(run, now),
        "node_hours": node_hours(run, now),
    }


def of_trial(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "config": trial.config,
        "kind": trial.kind,
        "objective": trial.objective,
        "objectives": trial.objectives,
        "measurements": trial.measurements,
        **({"measured": trial.bounded, "violates": trial.violated} if trial.bounded else {}),
        "expected": trial.expected,
    }


def of_explanation(run: Run, trial: Trial, lines: list[str]) -> dict[str, Any]:
    """A trial with all that the journal has of it; ``lines`` are the explanation as text."""
    return {
        "run": run.where,
        **of_trial(trial),
        "by": trial.by,
        "why": trial.why,
        "message": trial.message,
        "result": trial.result,
        "attempts": [
            {
                "attempt": a.number,
                "repeat": a.repeat,
                "nodes": a.nodes,
                "kind": a.kind,
                "objective": a.objective,
                "elapsed_s": a.elapsed_s if a.ended_t else None,
                "message": a.message,
            }
            for a in trial.attempts
        ],
        "best": run.best.number if run.best else None,
        "explanation": lines,
    }


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
