"""The sections of the report, in their order on the page. A further one is one more object here."""

from __future__ import annotations

from analysis.report import figures, front, stacks, tables
from analysis.report.drivers import doubt, failure_drivers, mattered_most, objective_drivers
from analysis.report.next_trials import next_trials
from analysis.report.resumption import resumption
from analysis.report.section import Content, Section
from analysis.report.trajectory import ranked_trials
from analysis.verdict import early_stop_lines, verdict_lines

TOP = 10
NEXT = 5  # trials beyond the shown that a longer search is told to have
DRAWN = 5  # best trials whose predicted parts are drawn


def _best(content: Content) -> str:
    run = content.run
    effects, unit = mattered_most(content)
    return content.html(
        "best.html",
        best=run.best,
        measured=len(ranked_trials(run)),
        alone=run.best is not None and len(run.best.measurements) == 1,
        lines=verdict_lines(run) + early_stop_lines(run),
        mattered=effects,
        unit=unit,
        problem=content.best_problem,
    )


def _next(content: Content) -> str:
    run, outlook = content.run, content.outlook
    told = [t.expected["left"] for _, t in sorted(run.trials.items()) if "left" in t.expected]
    pending = [t for _, t in sorted(run.trials.items()) if not t.ended and not t.running]
    found = next_trials(outlook) if outlook else []
    budget = content.pricing.space.budget.trials if content.pricing else None
    return content.html(
        "next.html",
        found=found,
        trained=len(outlook.observations.successes) if outlook else 0,
        pending=[tables.trial_row(run, trial) for trial in pending[:TOP]],
        left=told[-1] if told else None,
        goes_on=resumption(run, content.home, budget, len(run.trials) + len(found) + NEXT),
        doubtful=doubt(content.validation),
    )


def _has_next(content: Content) -> bool:
    """Whether anything can be said: with several objectives no trial alone is the best."""
    run = content.run
    return bool(run.trials) and len(run.goals) == 1 and content.outlook is not None


def _front(content: Content) -> str:
    run = content.run
    listed = {trial.number for trial in tables.listed(run)}
    content.data["front"] = front.figure(run, listed)
    return content.html(
        "front.html",
        successes=len(run.comparable()),
        optimal=len(run.front()),
        rows=[tables.trial_row(run, trial) for trial in run.front() if trial.number in listed],
    )


def _history(content: Content) -> str:
    run = content.run
    ended = any(trial.ended for trial in run.trials.values())
    by = ["trials", *(["time"] if run.opened_t else []), *(["nodes"] if _on_nodes(content) else [])]
    return content.html("history.html", ended=ended, by=by)


def _foretold(content: Content) -> list[tuple[float, list[float]]]:
    """What was measured of each trial that was foretold, and what was expected, with its edges."""
    told = content.data["trials"]["expected"]
    measured = content.data["trials"]["objective"]
    return [(measured[i], each) for i, each in told.items() if measured[i] is not None]


def _expected(content: Content) -> str:
    pairs = _foretold(content)
    inside = sum(low <= value <= high for value, (_, low, high) in pairs)
    return content.html("expected.html", told=len(pairs), inside=inside)


def _on_nodes(content: Content) -> bool:
    """Whether it is known where trials ran."""
    return any(attempt.nodes for t in content.run.trials.values() for attempt in t.attempts)


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
    if best:
        content.data["stacks"] = stacks.figure(validation, best)
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
        stacks=bool(best),
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
    Section("What to try next", _next, condition=_has_next, anchor="next"),
    Section(
        "Pareto front",
        _front,
        condition=lambda content: bool(content.run.front()),
        anchor="front",
    ),
    Section("Optimization history", _history),
    Section(
        "Expected and measured", _expected, condition=lambda content: len(_foretold(content)) > 1
    ),
    Section(
        lambda content: f"What drives {content.objective}",
        objective_drivers,
        anchor="drivers",
    ),
    Section("What fails, and why", failure_drivers, anchor="failures"),
    Section(
        "What the cost model says",
        _cost_model,
        condition=lambda content: content.validation is not None,
    ),
    Section(
        "Parameters and objective",
        _landscape,
        condition=lambda content: len(ranked_trials(content.run)) > 1,
    ),
    Section(
        "Nodes over time",
        _nodes,
        condition=_on_nodes,
    ),
    Section(_top_title, _top, condition=lambda content: bool(ranked_trials(content.run))),
    Section(_trials_title, _trials),
)
