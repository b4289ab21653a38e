"""The report over a run folder: one page that needs nothing but itself, and ``best.yaml``."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from analysis import units as quantities
from analysis import verdict as settled
from analysis.prediction.held_out import CrossValidation, cross_validated
from analysis.report import front, stacks
from analysis.report import plots as figures
from analysis.report import tables as rows
from analysis.report.sensitivity import (
    NotEnough,
    Sensitivity,
    failure_sensitivity,
    objective_sensitivity,
)
from analysis.report.trajectory import failures, idle_spans, ranking, search_time_s, trajectory
from analysis.run.atomic import write_atomically
from analysis.run.best import write_best
from analysis.run.fold import Run, read_run
from analysis.run.frame import load

TOP = 10
DRAWN = 5  # best trials whose predicted parts are drawn


@dataclass(frozen=True)
class Section:
    """A sensitivity analysis on the page: a figure, or the reason why there is none."""

    refusal: str = ""
    sensitivity: Sensitivity | None = None
    image: str = ""


def write_report(
    run_dir: Path, validate: Callable[[Run], CrossValidation | None] = cross_validated
) -> Path:
    """Write ``report/`` in a run folder: ``index.html``, its figures as PNG, ``best.yaml``.

    It can be written at any time, also while the search runs; files are replaced whole.

    Args:
        run_dir: ``runs/NAME``.
        validate: compares the cost model with the run's trials; None: the page has no word of it.

    Returns:
        Path of ``index.html``.

    Raises:
        RunError: ``run_dir`` is not a run folder, or its journal is damaged.
    """
    run = read_run(run_dir)
    folder = run.folder.report
    folder.mkdir(exist_ok=True)
    frame = load(run_dir)
    frame["objective"] = quantities.scaled(run.objective_key, frame["objective"])
    what, unit = quantities.label(run.objective_key), quantities.unit(run.objective_key)
    effect = unit or run.objective_key
    best_problem = write_best(run, folder / "best.yaml")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": quantities.number,
        "duration": quantities.duration,
        "value": quantities.value_text,
        "percent": quantities.percent,
        "counted": quantities.counted,
    }
    varied, fixed = rows.parameters(run)
    forecast = validate(run)
    template = environment.from_string(Path(__file__).with_name("page.html").read_text())
    page = template.render(
        run=run,
        objective={"label": what, "unit": unit, "verb": "max" if run.maximize else "min"},
        facts=_facts(run),
        best=run.best,
        best_problem=best_problem,
        sought=front.sought(run),
        more=[quantities.label(key) for key, _ in run.goals[1:]],
        front=_front(run, folder / "front.png"),
        trajectory=_image(folder / "trajectory.png", _trajectory_figure(run, what)),
        drivers=_section(objective_sensitivity, frame, folder / "objective_shap.png", effect),
        failing=_section(
            failure_sensitivity, frame, folder / "failure_shap.png", "probability of failing"
        ),
        forecast=forecast,
        stacks=_stacks(folder / "forecast.png", run, forecast),
        failures=failures(run).to_dict("records"),
        parameters=varied,
        fixed=fixed,
        metrics=rows.metrics(run, frame),
        settled=settled.verdict_rows(run) + settled.saved_rows(run),
        error_shares=settled.shares(run),
        top=[rows.row(run, trial) for trial in ranking(run)[:TOP]],
        trials=[rows.row(run, trial) for _, trial in sorted(run.trials.items())],
    )
    write_atomically(folder / "index.html", page.encode("utf-8", "replace"))
    return folder / "index.html"


def _facts(run: Run) -> dict[str, Any]:
    """Counts and sums for the head of the page; times in seconds."""
    trials = list(run.trials.values())
    ended = [t for t in trials if t.ended]
    done = ranking(run)
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
        "as_of": f"{datetime.fromtimestamp(run.last_t, UTC):%Y-%m-%d %H:%M} UTC",
    }


def _trajectory_figure(run: Run, what: str) -> Figure:
    origin_t, idle = (run.opened_t[0] if run.opened_t else 0.0), idle_spans(run)
    restarts_s = [search_time_s(t, origin_t, idle) for t in run.opened_t[1:]]
    frame = trajectory(run)
    key = run.objective_key
    for column in ("objective", "best"):
        frame[column] = quantities.scaled(key, frame[column])
    return figures.trajectory_figure(frame, what, restarts_s)


def _section(
    analyse: Callable[[pd.DataFrame], Sensitivity], frame: pd.DataFrame, path: Path, effect: str
) -> Section:
    try:
        sensitivity = analyse(frame)
    except NotEnough as refusal:
        path.unlink(missing_ok=True)  # of an earlier state of the run
        return Section(refusal=str(refusal))
    figure = figures.sensitivity_figure(sensitivity, effect)
    return Section(sensitivity=sensitivity, image=_image(path, figure))


def _stacks(path: Path, run: Run, forecast: CrossValidation | None) -> str:
    """Data URL of the best trials' predicted parts; empty where there is nothing to draw."""
    best = [trial.number for trial in ranking(run)[:DRAWN]]
    if forecast is None or not best:
        path.unlink(missing_ok=True)  # of an earlier state of the run
        return ""
    return _image(path, stacks.forecast_figure(forecast, best))


def _front(run: Run, path: Path) -> dict[str, Any] | None:
    """The Pareto front's picture and table; None where one figure is sought, or nothing ran."""
    trials = run.front()
    if not trials:
        path.unlink(missing_ok=True)
        return None
    figure = front.front_figure(run)
    write_atomically(path, figures.png(figure))
    return {
        "svg": Markup(front.inline_svg(figure)),
        "successes": len(run.comparable()),
        "rows": [rows.row(run, trial) for trial in trials],
    }


def _image(path: Path, figure: Figure) -> str:
    """Write the figure beside the page; return it as a data URL."""
    data = figures.png(figure)
    write_atomically(path, data)
    return "data:image/png;base64," + base64.b64encode(data).decode()
