"""The report over a run folder: one page that needs nothing but itself, and ``best.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from analysis import units
from analysis.prediction.held_out import CrossValidation, cross_validated
from analysis.report import figures, front
from analysis.report.section import Content, Section
from analysis.report.sections import SECTIONS
from analysis.report.trajectory import idle_spans, ranked_trials, search_time_s
from analysis.run.best import write_best
from analysis.run.fold import Run, read_run
from analysis.run.frame import frame_of
from foundation.writing import write_atomically

TITLE = b"meshtune report</title>"  # of every page, within its first HEAD bytes
HEAD = 4096

_FORMER_PICTURES = (
    *("trajectory", "front", "forecast"),
    *("model_shap", "objective_shap", "failure_shap"),
)
"""That earlier versions wrote beside the page, of trials that may be outdated."""


def write_report(
    run_dir: Path | str,
    sections: Sequence[Section] = SECTIONS,
    validate: Callable[[Run], CrossValidation | None] = cross_validated,
    home: Path | None = None,
) -> Path:
    """Write ``report/`` in a run folder: ``index.html`` and ``best.yaml``.

    It can be written at any time, also while the search runs; files are replaced whole.

    Args:
        run_dir: ``runs/NAME``.
        sections: of the page, in order.
        validate: compares the cost model with the run's trials; None: the page has no word of it.
        home: what the page calls the run's folder, where ``run_dir`` is a copy of it.

    Returns:
        Path of ``index.html``.

    Raises:
        RunError: ``run_dir`` is not a run folder, or its journal is damaged.
    """
    run = read_run(run_dir)
    folder = run.folder.report
    _make(folder)
    for picture in _FORMER_PICTURES:
        (folder / f"{picture}.png").unlink(missing_ok=True)
    problem = write_best(run, folder / "best.yaml")
    if home:
        problem = problem.replace(str(run.folder.path), str(home))
    frame = _shown(run, frame_of(run))
    content = Content(run, frame, home or run.directory, validate(run), problem)
    return _write(content, sections, folder)


def write_imported(run: Run, folder: Path, sections: Sequence[Section] = SECTIONS) -> Path:
    """Write the page of trials that another program ran, as far as it says what they were.

    Args:
        run: from :func:`analysis.read_results`.
        folder: in which ``index.html`` is written; made if need be.
        sections: of the page, in order; those that need more than is known are left out.

    Returns:
        Path of ``index.html``.

    Raises:
        FileExistsError: there is a page that is not meshtune's.
    """
    page = folder / "index.html"
    if page.exists() and TITLE not in page.read_bytes()[:HEAD]:
        raise FileExistsError(f"{page} is no page of meshtune's: move it away")
    _make(folder)
    return _write(Content(run, _shown(run, frame_of(run)), run.directory), sections, folder)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = f"{folder} is a file, where a report's folder should be: move it away"
        raise FileExistsError(what) from None


def _shown(run: Run, frame: pd.DataFrame) -> pd.DataFrame:
    """The trials with the objective in the unit in which it is shown."""
    return frame.assign(objective=units.scaled(run.objective_key, frame["objective"]))


def _write(content: Content, sections: Sequence[Section], folder: Path) -> Path:
    run, done = content.run, ranked_trials(content.run)
    content.data.update(trials=figures.trials(run), effects={})
    drawn = [_drawn(section, content) for section in sections if section.condition(content)]
    page = content.html(
        "page.html",
        facts=_facts(run),
        sought=front.sought(run),
        best=units.scaled(run.objective_key, done[0].objective or 0.0) if done else None,
        best_trial=done[0].number if done else None,
        sections=drawn,
        data=figures.embedded(content.data),
    )
    write_atomically(folder / "index.html", page.encode("utf-8", "replace"))
    return folder / "index.html"


def _drawn(section: Section, content: Content) -> dict[str, str]:
    """A section's parts."""
    body = Markup(section.draw(content).rstrip())
    return {"title": section.heading(content), "anchor": section.anchor, "body": body}


def _facts(run: Run) -> dict[str, Any]:
    """Counts and sums for the head of the page; times in seconds."""
    trials = list(run.trials.values())
    ended = [t for t in trials if t.ended]
    done = ranked_trials(run)
    failed = [t for t in ended if not t.ok]
    node_hours = sum(t.node_seconds for t in trials) / 3600
    middle = float(pd.Series([t.objective for t in done], dtype=float).median()) if done else 0.0
    best = run.best.objective if run.best and run.best.objective is not None else 0.0
    ratio = (best / middle if run.maximize else middle / best) if best > 0 and middle > 0 else None
    origin_t = run.opened_t[0] if run.opened_t else run.last_t
    return {
        "ended": len(ended),
        "ok": len(done),
        "failed": len(failed),
        "unfinished": len(trials) - len(ended),
        "sessions": len(run.opened_t),
        "search_s": search_time_s(run.last_t, origin_t, idle_spans(run)),
        "node_hours": node_hours,
        "failed_share": sum(t.node_seconds for t in failed) / 3600 / node_hours
        if node_hours
        else 0.0,
        "over_median": ratio,
        "timed": bool(run.opened_t),
        "as_of": "" if run.origin else _day_and_time(run.last_t),  # others' clocks start anywhere
    }


def _day_and_time(at_t: float) -> str:
    return f"{datetime.fromtimestamp(at_t, UTC):%Y-%m-%d %H:%M} UTC"
