"""The report: one self-contained page, and ``best.yaml``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup

from analysis import units
from analysis.report import figures
from analysis.report.outcomes import ranked_trials
from analysis.report.section import Content, Section
from analysis.report.sections import SECTIONS
from analysis.run.best import write_best
from analysis.run.fold import Run, read_run
from analysis.run.frame import frame_of
from foundation.writing import write_atomically

TITLE = b"meshtune report</title>"  # within the first HEAD bytes of every page
HEAD = 4096


def write_report(
    of: Run | Path | str,
    sections: Sequence[Section] = SECTIONS,
    home: Path | None = None,
    folder: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Path:
    """Write ``index.html`` and, in a run folder, ``best.yaml``, at any time of the search.

    Args:
        of: ``runs/NAME``, or a run from :func:`analysis.read_results`, whose page rests on its
            trials alone.
        home: name of the run's folder on the page, if the folder is a copy.
        folder: of the page; default ``report/`` in the run folder.
        tell: receives a line on each step.

    Returns the path of ``index.html``; files are replaced whole.

    Raises:
        RunError: ``of`` is not a run folder, or its journal is damaged or of another space.
        FileExistsError: there is a page that is not meshtune's, or a file instead of a folder.
    """
    run = of if isinstance(of, Run) else read_run(of)
    folder = folder or run.folder.report
    if run.origin:
        page = folder / "index.html"
        if page.exists() and TITLE not in page.read_bytes()[:HEAD]:
            raise FileExistsError(f"{page} is no page of meshtune's: move it away")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = f"{folder} is a file, where a report's folder should be: move it away"
        raise FileExistsError(what) from None

    content = content_of(run, home, tell)
    if not run.origin:
        problem = write_best(run, folder / "best.yaml")
        problem = problem.replace(str(run.folder.path), str(home)) if home else problem
        content = replace(content, best_problem=problem)
    return _write(content, sections, folder)


def content_of(
    run: Run, home: Path | None = None, tell: Callable[[str], object] = lambda _: None
) -> Content:
    """Content of a run's sections; see :func:`write_report`. Raises RunError as it does."""
    space = None if run.origin else run.folder.readable_space()
    if space:  # without one a run has a shorter page
        run.check_configurations(space)
    frame = frame_of(run)
    frame = frame.assign(objective=units.scaled(run.objective_key, frame["objective"]))
    return Content(run, frame, home or run.directory, tell)


def _write(content: Content, sections: Sequence[Section], folder: Path) -> Path:
    run, best = content.run, content.run.best
    drawn, data = [], {"trials": content.trials}
    for section in sections:
        if section.condition(content):
            title = section.heading(content)
            content.tell(f"report: {title}")
            body = Markup(section.draw(content).rstrip())
            drawn.append({"title": title, "anchor": section.anchor, "body": body})
            data |= section.data(content)
    page = content.html(
        "page.html",
        facts=_facts(run),
        sought=_sought(run),
        best=units.scaled(run.objective_key, best.objective or 0.0) if best else None,
        best_trial=best.number if best else None,
        sections=drawn,
        data=figures.embedded(data),
    )
    write_atomically(folder / "index.html", page.encode("utf-8", "replace"))
    return folder / "index.html"


def _sought(run: Run) -> str:
    """``Maximizes throughput (tokens/s), minimizes nodes``."""
    goals = [f"{'maximizes' if up else 'minimizes'} {units.label(k)}" for k, up in run.goals]
    text = ", ".join(goals)
    return text[0].upper() + text[1:]


def _facts(run: Run) -> dict[str, Any]:
    """Counts and shares for the head of the page."""
    done, hours = ranked_trials(run), run.node_hours
    rivals = [t for t in done if not t.violated]  # what the best was chosen among
    failed = [trial for trial in run.reported if not trial.ok]
    ratio = None
    if run.best and len(rivals) > 1:
        best, middle = run.best.objective or 0.0, median(t.objective or 0.0 for t in rivals)
        if best > 0 and middle > 0:
            ratio = best / middle if run.maximize else middle / best
    return {
        "ok": len(done),
        "failed": len(failed),
        "failed_share": sum(t.node_seconds for t in failed) / 3600 / hours if hours else 0.0,
        "over_median": ratio if ratio and ratio > 1.0005 else None,
        # The times of other programs may start anywhere.
        "as_of": "" if run.origin else f"{datetime.fromtimestamp(run.last_t, UTC):%F %H:%M} UTC",
    }
