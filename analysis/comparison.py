"""Runs side by side: what each found, in how many trials, and at what cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from analysis.run.fold import Run
from foundation.quantities import clock_text, counted, number, value_text

NEAR = 0.05  # distance from the run's best, as a share of it


def comparison(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Rows of a label and one text per run.

    Parameters in which the best configurations differ have a row each; the others share the last
    row, which has one text.
    """
    bests = [run.best for run in runs]
    rows = [
        ("run", [run.where for run in runs]),
        ("space", [run.space for run in runs]),
        ("launcher", [run.launcher for run in runs]),
        ("trials", [_trials(run) for run in runs]),
        ("best", [_best(run) for run in runs]),
        ("relative to the first", _ratios(runs)),
        ("best trial", [str(best.number) if best else "–" for best in bests]),
        (f"within {100 * NEAR:.0f} % of it", [_soon(run) for run in runs]),
        ("left, expected", [_left(run) for run in runs]),
        ("search time", [_time(run) for run in runs]),
        ("node-hours", ["–" if run.origin else f"{number(run.node_hours)}" for run in runs]),
    ]
    names = dict.fromkeys(name for best in bests if best for name in best.config)
    own = {name: [value_text(b.config.get(name)) if b else "–" for b in bests] for name in names}
    differing = {name: values for name, values in own.items() if len(set(values)) > 1}
    rows += differing.items()
    if same := [f"{name}={values[0]}" for name, values in own.items() if name not in differing]:
        rows.append(("in common", [" ".join(same)]))
    return rows


def comparison_text(runs: Sequence[Run]) -> list[str]:
    """The comparison as lines of text."""
    rows = comparison(runs)
    count = len(runs)
    first = max(len(label) for label, _ in rows)
    widths = [max(len(t[i]) for _, t in rows if len(t) == count) for i in range(count)]
    lines = []
    for label, texts in rows:
        cells = texts if len(texts) < count else map(str.ljust, texts, widths)
        lines.append(f"{label:{first}}  {'  '.join(cells)}".rstrip())
    if len({tuple(run.goals) for run in runs}) > 1:
        lines.append("note: the objectives differ, so the numbers are not comparable")
    if len({run.launcher == "simulate" for run in runs}) > 1:
        lines.append("note: a simulated run has the model's numbers, not measured ones")
    return lines


def _trials(run: Run) -> str:
    failed = Counter(trial.kind for trial in run.ended if not trial.ok)
    kinds = ", ".join(f"{n} {kind}" for kind, n in failed.most_common())
    return f"{len(run.ended)}{f' ({kinds})' if kinds else ''}"


def _best(run: Run) -> str:
    return run.objectives_text(run.best) if run.best else run.no_best


def _ratios(runs: Sequence[Run]) -> list[str]:
    """Each run's best objective over that of the first run."""
    first, goals = runs[0].best, runs[0].goals
    if not first or not first.objective:
        return ["–" for _ in runs]
    return [
        number((run.best.objective or 0.0) / first.objective)
        if run.best and run.goals == goals
        else "–"
        for run in runs
    ]


def _soon(run: Run) -> str:
    """The number of trials that had ended when the first one came near the best."""
    most = run.merits(run.best)[0] if run.best else math.inf
    for count, trial in enumerate(sorted(run.ended, key=lambda t: t.ended_t or 0.0), start=1):
        if trial.ok and run.merits(trial)[0] >= most - NEAR * abs(most):
            return f"after {counted(count, 'trial')}"
    return "–"


def _left(run: Run) -> str:
    told = [t.expected["left"] for _, t in sorted(run.trials.items()) if "left" in t.expected]
    return f"{100 * told[-1]:.2g} %" if told else "–"


def _time(run: Run) -> str:
    return clock_text(run.search_s(run.last_t)) if run.opened_t else "–"
