"""The sections of the report, in their order on the page. A further one is one more object here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from analysis import units
from analysis.report import front, plots, stacks, tables
from analysis.report.section import Content, Section
from analysis.report.sensitivity import (
    NotEnough,
    Sensitivity,
    failure_sensitivity,
    objective_sensitivity,
)
from analysis.report.trajectory import (
    failures,
    idle_spans,
    ranked_trials,
    search_time_s,
    trajectory,
)
from analysis.verdict import early_stop_lines, verdict_lines

TOP = 10
DRAWN = 5  # best trials whose predicted parts are drawn


def _best(content: Content) -> str:
    lines = verdict_lines(content.run) + early_stop_lines(content.run)
    return content.html(
        "best.html", best=content.run.best, lines=lines, problem=content.best_problem
    )


def _front(content: Content) -> str:
    run = content.run
    listed = {trial.number for trial in tables.listed(run)}
    figure = front.front_figure(run, listed)
    content.image("front.png", figure)
    return content.html(
        "front.html",
        svg=Markup(front.inline_svg(figure)),
        successes=len(run.comparable()),
        optimal=len(run.front()),
        rows=[tables.trial_row(run, trial) for trial in run.front() if trial.number in listed],
    )


def _history(content: Content) -> str:
    ended = any(trial.ended for trial in content.run.trials.values())
    image = content.image("trajectory.png", _trajectory_figure(content))
    return content.html("history.html", ended=ended, trajectory=image)


def _trajectory_figure(content: Content) -> Figure:
    run = content.run
    origin_t, idle = (run.opened_t[0] if run.opened_t else 0.0), idle_spans(run)
    restarts_s = [search_time_s(t, origin_t, idle) for t in run.opened_t[1:]]
    frame = trajectory(run)
    for column in ("objective", "best"):
        frame[column] = units.scaled(run.objective_key, frame[column])
    return plots.trajectory_figure(frame, content.objective, restarts_s)


def _drivers(content: Content) -> str:
    effect = units.unit(content.run.objective_key) or content.run.objective_key
    found = _sensitivity(content, objective_sensitivity, "objective_shap.png", effect)
    return content.html("drivers.html", **found)


def _failures(content: Content) -> str:
    effect = "probability of failing"
    found = _sensitivity(content, failure_sensitivity, "failure_shap.png", effect)
    return content.html("failures.html", failures=failures(content.run).to_dict("records"), **found)


def _sensitivity(
    content: Content, analyse: Callable[[pd.DataFrame], Sensitivity], picture: str, effect: str
) -> dict[str, Any]:
    """A sensitivity analysis and its picture, or the reason why there is none."""
    try:
        sensitivity = analyse(content.frame)
    except NotEnough as refusal:
        return {"refusal": str(refusal), "sensitivity": None}
    image = content.image(picture, plots.sensitivity_figure(sensitivity, effect))
    return {"sensitivity": sensitivity, "image_source": image}


def _cost_model(content: Content) -> str:
    validation = content.validation
    assert validation is not None  # the section's condition
    best = [trial.number for trial in ranked_trials(content.run)[:DRAWN]]
    image = ""
    if best:
        image = content.image("forecast.png", stacks.stacks_of(validation, best))
    listed = {trial.number for trial in tables.listed(content.run)}
    rows = [row for row in validation.by_trial if row["number"] in listed]
    return content.html("cost_model.html", validation=validation, stacks=image, rows=rows)


def _top(content: Content) -> str:
    run = content.run
    return content.html(
        "top.html", top=[tables.trial_row(run, trial) for trial in ranked_trials(run)[:TOP]]
    )


def _top_title(content: Content) -> str:
    count = min(TOP, len(ranked_trials(content.run)))
    return f"Best {count} configurations" if count > 1 else "The successful configuration"


def _trials(content: Content) -> str:
    run = content.run
    rows = [tables.trial_row(run, trial) for trial in tables.listed(run)]
    return content.html("trials.html", trials=rows, left_out=len(run.trials) - len(rows))


def _trials_title(content: Content) -> str:
    return "Every trial" if len(content.run.trials) <= tables.LISTED else "Trials"


SECTIONS: tuple[Section, ...] = (
    Section("Best configuration", _best),
    Section(
        "Pareto front",
        _front,
        condition=lambda content: bool(content.run.front()),
        anchor="front",
        pictures=("front.png",),
    ),
    Section("Optimization history", _history, pictures=("trajectory.png",)),
    Section(
        lambda content: f"What drives {content.objective}",
        _drivers,
        pictures=("objective_shap.png",),
    ),
    Section("What fails, and why", _failures, pictures=("failure_shap.png",)),
    Section(
        "What the cost model says",
        _cost_model,
        condition=lambda content: content.validation is not None,
        pictures=("forecast.png",),
    ),
    Section(_top_title, _top, condition=lambda content: bool(ranked_trials(content.run))),
    Section(_trials_title, _trials),
)
