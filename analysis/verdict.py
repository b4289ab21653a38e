"""A run in a few lines: its winner, and trials that were stopped early."""

from __future__ import annotations

import math
import textwrap
from statistics import median

from analysis import units
from analysis.finalists import EQUAL, EXACT_LOG_SD, FINAL_WEIGHT, median_variance, noise_of, verdict
from analysis.run.fold import Run
from foundation.quantities import counted, percent, significant

SHOWN_MESSAGE = 200  # characters
SPEEDS = ("tokens_per_second", "samples_per_second", "tflops_per_gpu", "step_time_s")
"""Objectives whose best trial is the fastest one."""


def verdict_lines(run: Run, confidence: float | None = None) -> list[tuple[str, str]]:
    """Lines (label, text): the winner once a trial was repeated, better trials that failed when
    repeated, the gain that the search last expected of untried configurations, early stops.

    They mention the ``confidence`` that the search had to reach, if it is given.
    """
    lines = [*_winner(run, confidence), *_dropped(run)]
    if not run.best and any(t.violated for t in run.trials.values()):
        lines = [("subject to", run.no_best), *lines]
    if (left := expected_left(run)) is not None:
        lines.append(("headroom", f"{percent(left)} expected in all that is untried"))
    return [*lines, *_early_stops(run)]


def expected_left(run: Run) -> float | None:
    """Share of the best that all untried configurations together were last expected to add."""
    told = [t.expected["left"] for _, t in sorted(run.trials.items()) if "left" in t.expected]
    return told[-1] if told else None


def _winner(run: Run, confidence: float | None) -> list[tuple[str, str]]:
    repeated = any(a.repeat for t in run.trials.values() for a in t.attempts)
    now = verdict(run) if repeated else None
    if now is None:
        return []
    first = now.first
    value = run.trials[first.trial].objective or 0.0
    error = value * standard_errors(run).get(first.trial, 0.0)
    reached = units.text(run.objective_key, value, error)
    words = f"trial {first.trial}, {reached}, measured {_times(first.measurements)}"
    failed = run.trials[first.trial].failed_repeats
    if failed:
        words += f", failed {_times(failed)}"
    best = "fastest" if run.objective_key.startswith(SPEEDS) else "best"
    measured = sum(t.ok and t.objective is not None and not t.violated for t in run.trials.values())
    if measured == 1:  # there is nothing to compare it with
        return [("winner", f"{words}; no other configuration was")]
    words += (
        f"; {_chance(first.best)} likely the {best} of the {measured:,} measured, "
        f"{_chance(now.confidence)} likely within {100 * EQUAL:.0f} % of it"
    )
    if confidence is not None:
        met = "reached" if now.confidence >= confidence else "not reached"
        words += f" (confidence {confidence:g} {met})"
    lines = [("winner", words)]
    if other := now.runner_up:
        words = f"trial {other.trial}, {percent(other.behind)} behind"
        lines.append(("runner-up", f"{words}, measured {_times(other.measurements)}"))
    share = percent(now.noise.log_sd) if now.noise.log_sd > EXACT_LOG_SD else "none"
    lines.append(("noise", f"{share} between runs of one configuration"))
    return lines


def _dropped(run: Run) -> list[tuple[str, str]]:
    """Trials that were better than the winner, but failed when they were measured again."""
    sign, best, lines = (1 if run.maximize else -1), run.best, []
    for trial in run.trials.values():
        done = [a.objective for a in trial.attempts if a.complete and a.objective is not None]
        if trial.ok or not trial.failed_repeats or not done:
            continue
        if best is None or sign * median(done) > sign * (best.objective or 0.0):
            words = f"trial {trial.number}, {units.text(run.objective_key, median(done))} at first"
            why = textwrap.shorten(trial.message, SHOWN_MESSAGE, placeholder=" ...")
            lines.append(("dropped", f"{words}, {trial.kind}: {why}"))
    return lines


def _early_stops(run: Run) -> list[tuple[str, str]]:
    early = [t for t in run.trials.values() if t.saved_node_s or t.stopped_early]
    if not early:
        return []
    saved_min = sum(t.saved_node_s for t in early) / 60
    minutes = counted(significant(saved_min), "node-minute")
    saved = minutes if saved_min >= 1 else counted(round(60 * saved_min), "node-second")
    known = f", {saved} saved" if saved_min * 60 >= 0.5 else ""
    return [("early stop", f"{counted(len(early), 'trial')}{known}")]


def standard_errors(run: Run) -> dict[int, float]:
    """The relative standard error of the median, by trial that was measured more than once."""
    noise = noise_of(run, FINAL_WEIGHT).log_sd
    counts = {t.number: len(t.measurements) for t in run.trials.values()}
    return {
        n: noise * math.sqrt(median_variance(count)) for n, count in counts.items() if count > 1
    }


def _chance(probability: float) -> str:
    """A probability that is never 1: the model may be wrong."""
    return "over 99 %" if probability > 0.99 else f"{100 * probability:.0f} %"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
