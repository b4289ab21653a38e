"""What is said of measurements beyond the first: repeats of finalists, and trials stopped early."""

from __future__ import annotations

import math

from analysis.finalists import EQUAL, median_variance, noise_of, verdict
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial


def verdict_rows(run: Run, asked: float | None = None) -> list[tuple[str, str]]:
    """The winner, how sure that is, and the runner-up; nothing before a trial was repeated.

    Args:
        run: with its repeats.
        asked: the confidence at which it counts as settled; None: that is not said.
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
        f"; the best with probability {first.best:.2f}, "
        f"at most {EQUAL:.0%} behind it with {now.confidence:.2f}"
    )
    if asked is not None:
        words += f" ({'' if now.confidence >= asked else 'not '}settled at {asked:g})"
    rows = [("winner", words)]
    other = now.runner_up
    if other:
        words = (
            f"trial {other.trial}, {other.behind:.1%} behind, measured {_times(other.measurements)}"
        )
        rows.append(("runner-up", words))
    rows.append(("noise", f"{now.noise.log_sd:.1%} between runs of one configuration"))
    return rows


def saved_rows(run: Run) -> list[tuple[str, str]]:
    """Trials that were stopped early, and what that saved; nothing where there are none."""
    early = [t for t in run.trials.values() if t.saved_node_s or t.early]
    if not early:
        return []
    saved_min = sum(t.saved_node_s for t in early) / 60
    known = f", {saved_min:.3g} node-minutes saved" if saved_min else ""
    return [("early", f"{len(early)} stopped for being too slow{known}")]


def shares(run: Run) -> dict[int, float]:
    """Of each trial that was measured more than once: the standard error of its median, a share."""
    noise = noise_of(run).log_sd
    counts = {t.number: len(t.measurements) for t in run.trials.values()}
    return {
        n: noise * math.sqrt(median_variance(count)) for n, count in counts.items() if count > 1
    }


def ended_words(run: Run, trial: Trial, attempt: Attempt) -> str | None:
    """The line of an end that is no first result: a repeat's, or an early stop's."""
    if attempt.repeat and attempt.kind == "ok":
        middle = f"{trial.objective:.5g} is its median of {len(trial.measurements)}"
        return f"repeated {attempt.objective:.5g} {run.objective_key}; {middle}"
    if attempt.early:
        return f"too slow {attempt.objective:.5g} {run.objective_key}; {attempt.message}"
    return None


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
