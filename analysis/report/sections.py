"""The sections of the report, in their order on the page; a new one is one more object."""

from __future__ import annotations

from typing import Any

from analysis.finalists import verdict
from analysis.metrics import Metrics
from analysis.prediction.pricing import SUCCESSES
from analysis.prediction.probes import lessons
from analysis.report import figures, tables
from analysis.report.drivers import (
    doubt,
    failure_data,
    failure_drivers,
    mattered_most,
    objective_data,
    objective_drivers,
)
from analysis.report.next_trials import next_trials, resumption
from analysis.report.one_change import one_changes
from analysis.report.outcomes import failures, ranked_trials
from analysis.report.section import Content, Section
from analysis.verdict import expected_left, verdict_lines

TOP = 10
CHANGES = 8  # of one parameter that the first screen has
NEXT = 5  # trials that a longer search gets beyond the shown ones
SPEED = "tokens_per_second"
SETTLED = 0.9  # confidence in the best, if no space says how much is enough
DRAWN = 5  # best trials whose predicted parts are drawn


def _best(content: Content) -> str:
    run = content.run
    mattered, unit = mattered_most(content)
    kept = content.outlook.kept(run.best.config) if run.best and content.outlook else None
    speed = Metrics(run.best.result).get(SPEED) if run.best else None
    if run.best and run.objective_key == SPEED:  # of all its measurements
        speed = run.best.objective
    changes = one_changes(run, content.pricing) if run.best else []
    return content.html(
        "best.html",
        kept=kept,
        slower=float(kept.prediction.tokens_per_second[0]) / speed if kept and speed else None,
        measured=sum(not t.violated for t in ranked_trials(run)),
        beyond=sum(bool(t.violated) for t in ranked_trials(run)),
        lines=[line for line in verdict_lines(run) if line[0] != "headroom"],  # stated below
        changes=changes[:CHANGES],
        further=len(changes) - CHANGES,
        mattered=mattered,
        unit=unit,
        risk=_risk(content),
        failed=failures(run),
    )


def _risk(content: Content) -> float:
    """The probability that another trial is clearly better; 0 without repeats, or after enough."""
    now = verdict(content.run)
    if now is None or not any(len(t.measurements) > 1 for t in content.run.trials.values()):
        return 0.0
    enough = content.pricing.space.finalists.confidence if content.pricing else SETTLED
    return 1 - now.confidence if now.confidence < enough else 0.0


def _next(content: Content) -> str:
    run, outlook = content.run, content.outlook
    pending = [t for _, t in sorted(run.trials.items()) if not t.ended and not t.running]
    found = next_trials(outlook) if outlook else []
    budget = content.pricing.space.budget.trials if content.pricing else None
    return content.html(
        "next.html",
        found=found,
        trained=min(SUCCESSES, len(outlook.observations.successes)) if outlook else 0,
        pending=content.rows(pending[:TOP]),
        left=expected_left(run),
        goes_on=resumption(run, content.home, budget, len(run.trials) + len(found) + NEXT),
        doubtful=doubt(content.validation),
    )


def _has_next(content: Content) -> bool:
    """Whether there is one objective only, and the model predicts it."""
    run = content.run
    return bool(run.trials) and len(run.goals) == 1 and content.outlook is not None


def _front(content: Content) -> str:
    best = content.run.front()
    return content.html(
        "front.html",
        optimal=len(best),
        rows=content.rows(trial for trial in best if trial.number in content.listed),
    )


def _predicted(content: Content) -> list[tuple[float, tuple[float, ...]]]:
    """Measured objective of each predicted trial, and the prediction with its interval."""
    expected, measured = content.trials["expected"], content.trials["objective"]
    pairs = zip(measured, zip(*expected, strict=True), strict=True) if expected else ()
    return [(x, each) for x, each in pairs if x is not None and each[0] is not None]


def _expected(content: Content) -> str:
    pairs = _predicted(content)
    inside = sum(low <= value <= high for value, (_, low, high) in pairs)
    return content.html("expected.html", predicted=len(pairs), inside=inside)


def _cost_model(content: Content) -> str:
    validation = content.validation
    assert validation is not None  # the section's condition
    return content.html(
        "cost_model.html",
        # If the page has the model's drivers, the warning is in their section.
        doubtful="" if content.by_model else doubt(validation),
        rows=[row for row in validation.by_trial if row["number"] in content.listed],
    )


def _cost_model_data(content: Content) -> dict[str, Any]:
    assert content.validation is not None
    best = [trial.number for trial in ranked_trials(content.run)[:DRAWN]]
    drawn = {"stacks": figures.stacks(content.validation, best)} if best else {}
    return drawn | {"parts": content.parts}


def _top(content: Content) -> str:
    return content.html("top.html", top=content.rows(ranked_trials(content.run)[:TOP]))


def _top_title(content: Content) -> str:
    count = min(TOP, len(ranked_trials(content.run)))
    return f"Best {count} configurations" if count > 1 else "The successful configuration"


def _lessons(content: Content) -> list[str]:
    return [*lessons(content.pricing)] if content.pricing else []


SECTIONS: tuple[Section, ...] = (
    Section("Best configuration", _best),
    Section("What to try next", _next, condition=_has_next, anchor="next"),
    Section(
        "Pareto front",
        _front,
        condition=lambda content: bool(content.run.front()),
        anchor="front",
        data=lambda content: {"front": figures.front(content.run, content.listed)},
        figures=("front",),
    ),
    Section(
        "Optimization history", lambda content: content.html("history.html"), figures=("history",)
    ),
    Section(
        "Expected and measured",
        _expected,
        condition=lambda content: len(_predicted(content)) > 1,
        figures=("expected",),
    ),
    Section(
        lambda content: f"What drives {content.objective}",
        objective_drivers,
        anchor="drivers",
        data=objective_data,
        figures=("effects", "dependence"),
    ),
    Section(
        "What fails, and why",
        failure_drivers,
        anchor="failures",
        data=failure_data,
        figures=("failures", "border"),
    ),
    Section(
        "What the cost model says",
        _cost_model,
        condition=lambda content: content.validation is not None,
        data=_cost_model_data,
        figures=("compare", "stacks"),
    ),
    Section(
        "What the probes told",
        lambda content: content.html("probes.html", lines=_lessons(content)),
        condition=lambda content: bool(_lessons(content)),
    ),
    Section(
        "Parameters and objective",
        lambda content: content.html("landscape.html"),
        condition=lambda content: len(ranked_trials(content.run)) > 1,
        figures=("parallel", "heat", "slices", "edf"),
    ),
    Section(
        "Roofline",
        lambda content: content.html("roofline.html"),
        condition=lambda content: "attained" in content.trials["metrics"],
        figures=("roofline",),
    ),
    Section(
        "Nodes over time",
        lambda content: content.html("nodes.html"),
        condition=lambda content: content.on_nodes,
        data=lambda content: {"nodes": figures.nodes(content.run)},
        figures=("nodes",),
    ),
    Section(_top_title, _top, condition=lambda content: bool(ranked_trials(content.run))),
    Section(
        lambda content: "Every trial" if len(content.run.trials) <= tables.LISTED else "Trials",
        lambda content: content.html("trials.html"),
    ),
)
