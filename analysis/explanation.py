"""Why a trial of a run was proposed, what was expected of it, and what came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis import units
from analysis.cost.groups import MissingFactError
from analysis.prediction.pricing import price
from analysis.prediction.ranking import explain, rank_one
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from foundation.quantities import config_text, counted, duration, number, value_text
from search_spaces import SpaceError, load_space

TOKENS = 1e12  # to train on, for days
WIDTH = 12  # of the labels
SHOWN_NODES = 4


def explain_trial(run: Run, trial: Trial) -> list[str]:
    """All that the journal and the cost model say of a trial, as lines of text.

    Args:
        run: whose trial it is.
        trial: one of ``run.trials``.
    """
    return [*_told(run, trial), *_model(run, trial)]


def _told(run: Run, trial: Trial) -> Iterator[str]:
    """What the journal says."""
    yield _line("trial", f"{trial.number} of {run.space}")
    yield _line("config", config_text(trial.config))
    before = sum(_known(other, trial) for other in run.trials.values())
    since = duration(trial.proposed_t - run.opened_t[0]) if run.opened_t else "?"
    when = f"after {since}, when {counted(before, 'trial')} had ended"
    yield _line("proposed", f"by {trial.by or 'an unknown policy'}, {when}")
    if trial.why:
        yield _line("because", trial.why)
    if near := _nearest(run, trial):
        yield _line("nearest", f"{_named(run, near)}: {differences(near.config, trial.config)}")
    yield _line("expected", _expected(run, trial))
    yield _line("measured" if trial.ok else "ended", _came(run, trial))
    for attempt in trial.attempts:
        yield _line("", _attempt(run, attempt))
    best = run.best
    if best and best is not trial:
        yield _line("best", f"{_named(run, best)}: {differences(trial.config, best.config)}")


def _model(run: Run, trial: Trial) -> Iterator[str]:
    """What the cost model, calibrated with the run, says of it."""
    try:
        pricing = price(load_space(run.folder.space_file, frozen=True))
        if pricing is None:
            return
        pricing.learn(run)
        ranking = rank_one(pricing, pricing.space.canonical(trial.config))
    except (SpaceError, MissingFactError, ValueError):
        return
    yield ""
    told = len(pricing.teaching(run.trials.values()))
    yield f"by the cost model, calibrated with {counted(told, 'trial')} of this run:"
    yield from explain(ranking, TOKENS).splitlines()[1:]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """``tp 1 -> 2, gas 8 -> 4``: the parameters that two configurations have not in common."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    changes = [
        f"{name} {value_text(one.get(name))} -> {value_text(other.get(name))}" for name in names
    ]
    return ", ".join(changes) or "the same configuration"


def _expected(run: Run, trial: Trial) -> str:
    told = trial.expected
    words = []
    if "objective" in told:
        unit = units.unit(run.objective_key) or run.objective_key
        words.append(f"{_figure(run, told['objective'])} {unit}")
        if "low" in told and "high" in told:
            low, high = (_figure(run, told[edge]) for edge in ("low", "high"))
            words[0] += f", 95 % between {low} and {high}"
    if "fits" in told:
        words.append(f"fits with {100 * told['fits']:.0f} %")
    if "gain" in told:
        words.append(f"{100 * told['gain']:.2g} % to gain by it and what runs with it")
    if "left" in told:
        words.append(f"{100 * told['left']:.2g} % left on the table")
    return "; ".join(words) or "nothing: there was no prediction"


def _came(run: Run, trial: Trial) -> str:
    if trial.ok and trial.objective is not None:
        words = run.objectives_text(trial)
        if len(trial.measurements) > 1:
            words += f", the median of {len(trial.measurements)}"
        told = trial.expected
        if told.get("objective"):
            off = trial.objective / told["objective"] - 1
            words += f": {abs(off):.1%} {'above' if off > 0 else 'below'} it"
            if "low" in told and "high" in told:
                inside = told["low"] <= trial.objective <= told["high"]
                words += f", {'within' if inside else 'outside'} its interval"
        return words
    if trial.ended:
        return f"{trial.kind}: {trial.message}".rstrip(": ")
    return "it is running" if trial.running else "it waits for nodes, or to run again"


def _attempt(run: Run, attempt: Attempt) -> str:
    nodes = ",".join(attempt.nodes[:SHOWN_NODES])
    if len(attempt.nodes) > SHOWN_NODES:
        nodes += f" and {len(attempt.nodes) - SHOWN_NODES} more"
    what = f"{'repeat' if attempt.repeat else 'attempt'} {attempt.number} on {nodes}"
    if attempt.ended_t is None:
        return f"{what}: running"
    end = f"{attempt.kind} after {duration(attempt.elapsed_s)}"
    if attempt.objective is not None:
        return f"{what}: {end}, {_figure(run, attempt.objective)}"
    return f"{what}: {end}{f'; {attempt.message}' if attempt.message else ''}"


def _nearest(run: Run, trial: Trial) -> Trial | None:
    """Of the successes that were known, the one with the fewest other values; the best of them."""
    known = [t for t in run.trials.values() if t.ok and _known(t, trial)]
    if not known:
        return None

    def rank(other: Trial) -> tuple[int, tuple[float, ...]]:
        names = {*trial.config, *other.config}
        other_values = sum(trial.config.get(n) != other.config.get(n) for n in names)
        return other_values, tuple(-x for x in run.merits(other))

    return min(known, key=rank)


def _known(other: Trial, trial: Trial) -> bool:
    """Whether it had ended when ``trial`` was proposed."""
    return (
        other.ended_t is not None
        and other.number != trial.number
        and (other.ended_t <= trial.proposed_t)
    )


def _named(run: Run, trial: Trial) -> str:
    return f"trial {trial.number} ({run.objectives_text(trial)})"


def _figure(run: Run, value: float) -> str:
    return number(units.scaled(run.objective_key, value))


def _line(label: str, text: str) -> str:
    return f"{label:{WIDTH}}{text}"
