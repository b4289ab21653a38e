"""Runs side by side: what each found, in how many trials, and at what cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analysis.run.fold import Run
from analysis.run.trial import Trial
from foundation.quantities import clock_text, counted, value_text

NEAR = 0.05  # of the run's own best, from which a trial counts as near it


def comparison(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """A label and a text for each run, for every line of the comparison.

    Of the best configurations only those parameters have a line in which they differ; the others
    follow in one. The first runs' own objectives are shown, also where they are not the same.
    """
    bests = [run.best for run in runs]
    rows = [
        ("run", [run.where for run in runs]),
        ("space", [run.space for run in runs]),
        ("launcher", [run.launcher for run in runs]),
        ("trials", [_trials(run) for run in runs]),
        ("best", [_best(run) for run in runs]),
        ("over the first", _ratios(runs)),
        ("best is trial", [str(best.number) if best else "–" for best in bests]),
        (f"within {NEAR:.0%} of it", [_soon(run) for run in runs]),
        ("left, expected", [_left(run) for run in runs]),
        ("search time", [clock_text(_search_s(run)) if run.opened_t else "–" for run in runs]),
        ("node-hours", ["–" if run.origin else f"{_node_hours(run):.3g}" for run in runs]),
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
        lines.append("note: the runs have different objectives: their figures do not compare")
    if len({run.launcher == "simulate" for run in runs}) > 1:
        lines.append("note: a simulated run beside a real one: its figures are the model's")
    return lines


def _trials(run: Run) -> str:
    failed = Counter(t.kind for t in run.trials.values() if t.ended and not t.ok)
    ended = sum(t.ended for t in run.trials.values())
    kinds = ", ".join(f"{n} {kind}" for kind, n in failed.most_common())
    return f"{ended}{f' ({kinds})' if kinds else ''}"


def _best(run: Run) -> str:
    return run.objectives_text(run.best) if run.best else "no success yet"


def _ratios(runs: Sequence[Run]) -> list[str]:
    """How much better the best of each is than that of the first."""
    first = runs[0].best
    ratios = []
    for run in runs:
        best = run.best
        if not first or not best or not first.objective or run.goals != runs[0].goals:
            ratios.append("–")
            continue
        ratios.append(f"{(best.objective or 0.0) / first.objective:.4g}")
    return ratios


def _soon(run: Run) -> str:
    """The how manyth trial that ended was near the best."""
    ended = sorted((t for t in run.trials.values() if t.ended), key=lambda t: t.ended_t or 0.0)
    for count, trial in enumerate(ended, start=1):
        if run.best and trial.ok and _near(run, trial, run.best):
            return f"after {counted(count, 'trial')}"
    return "–"


def _near(run: Run, trial: Trial, best: Trial) -> bool:
    own, most = run.merits(trial)[0], run.merits(best)[0]
    return own >= most - NEAR * abs(most)


def _left(run: Run) -> str:
    told = [t.expected["left"] for _, t in sorted(run.trials.items()) if "left" in t.expected]
    return f"{100 * told[-1]:.2g} %" if told else "–"


def _search_s(run: Run) -> float:
    return run.past_sessions_s + (run.last_t - run.opened_t[-1] if run.opened_t else 0.0)


def _node_hours(run: Run) -> float:
    return sum(t.node_seconds for t in run.trials.values()) / 3600
