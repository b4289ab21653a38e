"""Runs side by side: what each found, in how many trials, and at what cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from analysis import units
from analysis.run.fold import Run
from analysis.verdict import expected_left
from foundation.documents import by_dotted_path
from foundation.quantities import clock_text, counted, number, value_text

NEAR = 0.05  # distance from the run's best, as a share of it
Rows = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Comparison:
    """Runs that are set side by side."""

    runs: Sequence[Run]

    def rows(self) -> Rows:
        """Rows of a label and one text per run; parameters that all bests share have one text."""
        runs, left = self.runs, map(expected_left, self.runs)
        bests = [run.best for run in runs]
        times = [clock_text(r.search_s(r.last_t)) if r.opened_t else "–" for r in runs]
        rows = [
            ("run", [run.where for run in runs]),
            ("space", [run.space for run in runs]),
            ("launcher", [run.launcher for run in runs]),
            ("trials", [run.counts for run in runs]),
            ("best", [r.objectives_text(r.best) if r.best else r.no_best for r in runs]),
            ("relative to the first", _ratios(runs)),
            ("best trial", [str(best.number) if best else "–" for best in bests]),
            (f"within {100 * NEAR:.0f} % of it", [_soon(run) for run in runs]),
            ("left, expected", ["–" if x is None else f"{100 * x:.2g} %" for x in left]),
            ("search time", times),
            ("node-hours", ["–" if run.origin else f"{number(run.node_hours)}" for run in runs]),
        ]
        names = dict.fromkeys(name for best in bests if best for name in best.config)
        own = {n: [value_text(b.config.get(n)) if b else "–" for b in bests] for n in names}
        differing = {name: values for name, values in own.items() if len(set(values)) > 1}
        rows += differing.items()
        if same := [f"{n}={values[0]}" for n, values in own.items() if n not in differing]:
            rows.append(("in common", [" ".join(same)]))
        return rows

    def text(self) -> list[str]:
        rows, count = self.rows(), len(self.runs)
        first = max(len(label) for label, _ in rows)
        widths = [max(len(t[i]) for _, t in rows if len(t) == count) for i in range(count)]
        lines = []
        for label, texts in rows:
            cells = texts if len(texts) < count else map(str.ljust, texts, widths)
            lines.append(f"{label:{first}}  {'  '.join(cells)}".rstrip())
        return [*lines, *self._notes()]

    def spaces(self) -> Rows:
        """The keys in which the spaces differ, with the value of each run's space."""
        own = [_space_of(run) for run in self.runs]
        keys = dict.fromkeys(key for space in own for key in space)
        rows = [(key, [space.get(key, "–") for space in own]) for key in keys]
        return [(key, values) for key, values in rows if len(set(values)) > 1]

    def page(self, names: Sequence[str], every: Sequence[str]) -> str:
        """The comparison as a page, with links to each run's own, and to ``every`` other name."""
        from analysis.report.section import page_from  # pandas: half a second

        return page_from(
            "compare.html",
            names=names,
            every=every,
            rows=[row for row in self.rows() if row[0] != "run"],
            spaces=self.spaces(),
            notes=self._notes(),
            data={"label": units.label(self.runs[0].objective_key), "runs": self._courses(names)},
        )

    def _courses(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The best so far of each run over trials, hours and node-hours."""
        from analysis.report.outcomes import trajectory

        courses = []
        for name, run in zip(names, self.runs, strict=True):
            course = trajectory(run)
            spent_s = [run.trials[number].node_seconds for number in course["trial"]]
            courses.append(
                {
                    "name": name,
                    "best": units.scaled(run.objective_key, course["best"]).tolist(),
                    "trials": list(range(1, len(course) + 1)),
                    "time": (course["search_s"] / 3600).tolist(),
                    "nodes": [spent / 3600 for spent in accumulate(spent_s)],
                }
            )
        return courses

    def _notes(self) -> list[str]:
        notes = []
        if len({tuple(run.goals) for run in self.runs}) > 1:
            notes.append("note: the objectives differ, so the numbers are not comparable")
        if len({run.launcher == "simulate" for run in self.runs}) > 1:
            notes.append("note: a simulated run has the model's numbers, not measured ones")
        return notes


def _space_of(run: Run) -> dict[str, str]:
    """The run's space, each value as text by its dotted key; empty if it cannot be read."""
    space = run.folder.readable_space()
    content = by_dotted_path(space.content()) if space else {}
    return {key: json.dumps(value) for key, value in content.items()}


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
