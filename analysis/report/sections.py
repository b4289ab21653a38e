"""The sections of the report, in their order on the page. A further one is one more object here."""

from __future__ import annotations

from markupsafe import Markup
from matplotlib.figure import Figure

from analysis import units
from analysis.report import figures, front, plots, stacks, tables
from analysis.report.drivers import doubt, failure_drivers, objective_drivers
from analysis.report.section import Content, Section
from analysis.report.trajectory import (
    idle_spans,
    ranked_trials,
    search_time_s,
    trajectory,
)
from analysis.verdict import early_stop_lines, verdict_lines

TOP = 10
DRAWN = 5  # best trials whose predicted parts are drawn


def _best(content: Content) -> str:
    run = content.run
    lines = verdict_lines(run) + early_stop_lines(run)
    told = [t.expected["left"] for _, t in sorted(run.trials.items()) if "left" in t.expected]
    return content.html(
        "best.html",
        best=run.best,
        measured=len(ranked_trials(run)),
        alone=run.best is not None and len(run.best.measurements) == 1,
        left=told[-1] if told else None,
        lines=lines,
        problem=content.best_problem,
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
    content.image("trajectory.png", _trajectory_figure(content))
    return content.html("history.html", ended=ended)


def _foretold(content: Content) -> list[tuple[float, list[float]]]:
    """What was measured of each trial that was foretold, and what was expected, with its edges."""
    told = content.data["trials"]["expected"]
    measured = content.data["trials"]["objective"]
    return [(measured[i], each) for i, each in told.items() if measured[i] is not None]


def _expected(content: Content) -> str:
    pairs = _foretold(content)
    inside = sum(low <= value <= high for value, (_, low, high) in pairs)
    return content.html("expected.html", told=len(pairs), inside=inside)


def _trajectory_figure(content: Content) -> Figure:
    run = content.run
    origin_t, idle = (run.opened_t[0] if run.opened_t else 0.0), idle_spans(run)
    restarts_s = [search_time_s(t, origin_t, idle) for t in run.opened_t[1:]]
    frame = trajectory(run)
    for column in ("objective", "best"):
        frame[column] = units.scaled(run.objective_key, frame[column])
    return plots.trajectory_figure(frame, content.objective, restarts_s)


def _nodes(content: Content) -> str:
    content.data["nodes"] = figures.nodes(content.run)
    return content.html("nodes.html")


def _landscape(content: Content) -> str:
    """The successes over their parameters; the pair that matters most is the first heat map."""
    varied = list(content.data["trials"]["parameters"])
    effects = content.data["effects"]
    by_effect = [row["name"] for row in effects.get("model") or effects.get("trials") or []]
    first = [name for name in by_effect if name in varied] + varied
    up = next((name for name in first if name != first[0]), first[0])
    return content.html("landscape.html", across=first[0], up=up)


def _cost_model(content: Content) -> str:
    validation = content.validation
    assert validation is not None  # the section's condition
    best = [trial.number for trial in ranked_trials(content.run)[:DRAWN]]
    image = ""
    if best:
        image = content.image("forecast.png", stacks.stacks_of(validation, best))
    listed = {trial.number for trial in tables.listed(content.run)}
    rows = [row for row in validation.by_trial if row["number"] in listed]
    ran = [t.number for t in ranked_trials(content.run) if t.number in listed]
    parts = content.data["parts"] = figures.parts(validation, ran)
    pairs = list(parts["of"]) if len(parts["of"]) > 1 else []
    return content.html(
        "cost_model.html",
        validation=validation,
        # Where its account of the parameters is shown, the warning stands there.
        doubtful="" if "model" in content.data["effects"] else doubt(validation),
        stacks=image,
        rows=rows,
        pairs=pairs,
    )


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
        "Expected and measured", _expected, condition=lambda content: len(_foretold(content)) > 1
    ),
    Section(
        lambda content: f"What drives {content.objective}",
        objective_drivers,
        anchor="drivers",
        pictures=("model_shap.png", "objective_shap.png"),
    ),
    Section("What fails, and why", failure_drivers, pictures=("failure_shap.png",)),
    Section(
        "What the cost model says",
        _cost_model,
        condition=lambda content: content.validation is not None,
        pictures=("forecast.png",),
    ),
    Section(
        "Parameters and objective",
        _landscape,
        condition=lambda content: len(ranked_trials(content.run)) > 1,
    ),
    Section(
        "Nodes over time",
        _nodes,
        condition=lambda content: any(t.attempts for t in content.run.trials.values()),
    ),
    Section(_top_title, _top, condition=lambda content: bool(ranked_trials(content.run))),
    Section(_trials_title, _trials),
)
