"""What is said of a run: its winner, its front, its repeats, and trials that were stopped early."""

from __future__ import annotations

import math

from analysis import units
from analysis.finalists import EQUAL, median_variance, noise_of, verdict
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from foundation.quantities import counted, number

SHOWN_FRONT = 8


def verdict_lines(run: Run, confidence: float | None = None) -> list[tuple[str, str]]:
    """The winner, how sure that is, and the runner-up; nothing before a trial was repeated.

    Args:
        run: with its repeats.
        confidence: that was asked for; None: nothing is said of it.

    Returns:
        A label and a text for each line.
    """
    if not any(a.repeat for t in run.trials.values() for a in t.attempts):
        return []
    now = verdict(run)
    if now is None:
        return []
    first = now.first
    words = f"trial {first.trial}, measured {_times(first.measurements)}"
    failed = run.trials[first.trial].failed_repeats
    if failed:
        words += f", failed {_times(failed)}"
    words += (
        f"; the best of the measured with probability {_chance(first.best)}, "
        f"within {EQUAL:.0%} of the best of them with {_chance(now.confidence)}"
    )
    if confidence is not None:
        reached = "reached" if now.confidence >= confidence else "not reached"
        words += f" (confidence {confidence:g} {reached})"
    lines = [("winner", words)]
    other = now.runner_up
    if other:
        words = (
            f"trial {other.trial}, {other.behind:.1%} behind, measured {_times(other.measurements)}"
        )
        lines.append(("runner-up", words))
    lines.append(("noise", f"{now.noise.log_sd:.1%} between runs of one configuration"))
    return lines


def early_stop_lines(run: Run) -> list[tuple[str, str]]:
    """How many trials were stopped early, and what that saved; nothing where none was."""
    early = [t for t in run.trials.values() if t.saved_node_s or t.stopped_early]
    if not early:
        return []
    saved_min = sum(t.saved_node_s for t in early) / 60
    known = f", {saved_min:.3g} node-minutes saved" if saved_min else ""
    return [("early stop", f"{counted(len(early), 'trial')}{known}")]


def front_lines(run: Run) -> list[tuple[str, str]]:
    """The Pareto front, a line for each of the first trials; nothing with one objective."""
    trials = run.front()
    if not trials:
        return []
    successes = counted(len(run.comparable()), "success")
    lines = [("front", f"{len(trials)} of {successes}, Pareto-optimal")]
    lines += [("", f"trial {t.number:4d}  {objectives_text(run, t)}") for t in trials[:SHOWN_FRONT]]
    if len(trials) > SHOWN_FRONT:
        lines.append(("", f"and {len(trials) - SHOWN_FRONT} more"))
    return lines


def objectives_text(run: Run, trial: Trial) -> str:
    """A success's objective, or all of several: ``1,234 tokens/s, 8 nodes``."""
    if not trial.objectives:
        return f"{trial.objective:.5g} {run.objective_key}"
    shown = [(units.scaled(key, trial.objectives[key]), key) for key, _ in run.goals]
    return ", ".join(
        f"{number(value)} {units.unit(key) or units.name(key)}" for value, key in shown
    )


def standard_errors(run: Run) -> dict[int, float]:
    """Of each trial that was measured more than once: the relative error of its median."""
    noise = noise_of(run).log_sd
    counts = {t.number: len(t.measurements) for t in run.trials.values()}
    return {
        n: noise * math.sqrt(median_variance(count)) for n, count in counts.items() if count > 1
    }


def attempt_text(run: Run, trial: Trial, attempt: Attempt) -> str | None:
    """The line of an end that is no first result: a repeat's, or an early stop's."""
    if attempt.repeat and attempt.kind == "ok":
        middle = f"median of {len(trial.measurements)}: {trial.objective:.5g}"
        return f"repeated {attempt.objective:.5g} {run.objective_key}; {middle}"
    if attempt.stopped_early:
        why = attempt.message.removeprefix("stopped early: ")
        return f"stopped  {attempt.objective:.5g} {run.objective_key}; {why}"
    return None


def _chance(probability: float) -> str:
    """Never certain: what was not thought of has its share, too."""
    return "over 0.99" if probability > 0.99 else f"{probability:.2f}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
