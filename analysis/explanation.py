"""A trial explained: why it was proposed, its prediction and its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from analysis import units
from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from foundation.quantities import config_text, counted, duration, number, percent, value_text

TOKENS = 1e12  # for which training time is shown
WIDTH = 12  # of the labels
SHOWN_NODES = 4


def explain_trial(run: Run, trial: Trial) -> list[str]:
    """Lines of text on one of the run's trials, from the journal and the cost model."""
    history = [f"{label:{WIDTH}}{text}" for label, text in _history(run, trial)]
    return [*history, *_model(run, trial)]


def _history(run: Run, trial: Trial) -> Iterator[tuple[str, str]]:
    """Labels and texts from the journal."""
    yield "trial", f"{trial.number} of {run.space}"
    yield "config", config_text(trial.config)
    before = sum(_known(other, trial) for other in run.trials.values())
    since = duration(trial.proposed_t - run.opened_t[0]) if run.opened_t else "?"
    when = f"after {since}, with {counted(before, 'trial')} ended"
    yield "proposed", f"by {trial.by or 'an unknown policy'} {when}"
    if trial.why:
        yield "because", trial.why
    if near := _nearest(run, trial):
        yield "nearest", f"{_named(run, near)}: {differences(near.config, trial.config)}"
    yield "expected", expectation(run, trial) or "no prediction"
    yield "measured" if trial.ok else "ended", _result(run, trial)
    for attempt in trial.attempts:
        yield "", _attempt(run, attempt)
    best = run.best
    if best and best is not trial:
        yield "best", f"{_named(run, best)}: {differences(trial.config, best.config)}"


def _model(run: Run, trial: Trial) -> Iterator[str]:
    """Lines from the cost model, calibrated with the run; none if it cannot price the trial."""
    try:
        pricing = Pricing.of_run(run.folder)
        if pricing is None:
            return
        pricing.learn(run)
        ranking = Ranking.of_one(pricing, pricing.space.canonical(trial.config))
    except ValueError:  # a fact is missing, say, or the trial is of other parameters
        return
    yield ""
    observations = len(pricing.teaching(run.trials.values()))
    yield f"cost model, calibrated with {counted(observations, 'trial')} of this run:"
    yield from ranking.explanation(TOKENS).splitlines()[1:]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """``tp 1 -> 2, gas 8 -> 4``: the parameters in which two configurations differ."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    changes = [
        f"{name} {value_text(one.get(name))} -> {value_text(other.get(name))}" for name in names
    ]
    return ", ".join(changes) or "the same configuration"


def expectation(run: Run, trial: Trial) -> str:
    """A trial's prediction before it ran, in words; empty without one."""
    expected = trial.expected
    words = []
    if "objective" in expected:
        words.append(units.text(run.objective_key, expected["objective"]))
        if "low" in expected and "high" in expected:
            low, high = (_shown(run, expected[edge]) for edge in ("low", "high"))
            words[0] += f" (95 %: {low} to {high})"
    if "fits" in expected:
        words.append(f"probability to fit {percent(expected['fits'])}")
    if "holds" in expected:
        words.append(f"probability to satisfy the bounds {percent(expected['holds'])}")
    if "gain" in expected:
        words.append(f"this batch should gain {100 * expected['gain']:.2g} %")
    if "left" in expected:
        words.append(f"all untried configurations, {100 * expected['left']:.2g} %")
    return "; ".join(words)


def _result(run: Run, trial: Trial) -> str:
    if trial.ok and trial.objective is not None:
        words = run.objectives_text(trial)
        if len(trial.measurements) > 1:
            words += f", median of {len(trial.measurements)}"
        expected = trial.expected
        if expected.get("objective"):
            off = trial.objective / expected["objective"] - 1
            words += f"; {percent(abs(off))} {'above' if off > 0 else 'below'} the prediction"
            if "low" in expected and "high" in expected:
                inside = expected["low"] <= trial.objective <= expected["high"]
                words += f", {'within' if inside else 'outside'} its interval"
        return words
    if trial.ended:
        return f"{trial.kind}: {trial.message}".rstrip(": ")
    if trial.crashes:
        return "crashed; runs again as the search continues"
    return "running" if trial.running else "waiting for nodes or another attempt"


def _attempt(run: Run, attempt: Attempt) -> str:
    nodes = ",".join(attempt.nodes[:SHOWN_NODES])
    if len(attempt.nodes) > SHOWN_NODES:
        nodes += f" and {len(attempt.nodes) - SHOWN_NODES} more"
    what = f"{'repeat' if attempt.repeat else 'attempt'} {attempt.number} on {nodes}"
    if attempt.ended_t is None:
        return f"{what}: running"
    end = f"{attempt.kind} after {duration(attempt.elapsed_s)}"
    if attempt.objective is not None:
        return f"{what}: {end}, {_shown(run, attempt.objective)}"
    return f"{what}: {end}{f'; {attempt.message}' if attempt.message else ''}"


def _nearest(run: Run, trial: Trial) -> Trial | None:
    """The earlier success with the fewest different values; the best of equals."""
    known = [t for t in run.trials.values() if t.ok and _known(t, trial)]
    if not known:
        return None

    def rank(other: Trial) -> tuple[int, tuple[float, ...]]:
        names = {*trial.config, *other.config}
        other_values = sum(trial.config.get(n) != other.config.get(n) for n in names)
        return other_values, tuple(-x for x in run.merits(other))

    return min(known, key=rank)


def _known(other: Trial, trial: Trial) -> bool:
    """Whether ``other`` had ended when ``trial`` was proposed."""
    return (
        other.ended_t is not None
        and other.number != trial.number
        and (other.ended_t <= trial.proposed_t)
    )


def _named(run: Run, trial: Trial) -> str:
    return f"trial {trial.number} ({run.objectives_text(trial)})"


def _shown(run: Run, value: float) -> str:
    return number(units.scaled(run.objective_key, value))
