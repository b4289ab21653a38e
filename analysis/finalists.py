"""The best configuration, the confidence in it, and the measurement that would tell most.

Two runs of one configuration differ by a few per cent, more than the spread of their steps
suggests: other nodes, another neighbour on the network, another clock. A search that has measured
its winner once has picked it partly for its luck. The leading configurations are therefore measured
again; this module chooses which, and says when that is enough.

All values are logarithms, so that noise is relative. Measurements of a configuration scatter around
its true value with one noise level for all configurations, estimated from all repeats and a prior.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.run.fold import Run
from analysis.run.trial import Trial

NOISE_LOG_SD = 0.03  # between two runs of one configuration, before any was measured twice
NOISE_WEIGHT = 3.0  # pseudo-observations (repeats) behind it
FINAL_WEIGHT = 1.0  # likewise, once there are repeats to estimate it: machines differ
EXACT_LOG_SD, EXACT_REPEATS = 1e-9, 1e3  # if repeats give the same to the last digit
TAILS = 4.0  # degrees of freedom of Student's t: single runs may be far off
EQUAL = 0.01  # share up to which two configurations are as good as each other
NEGLIGIBLE = 0.01  # probability of being the best below which a trial is no candidate
DRAWS = 10_000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Spread of a configuration's runs: ``log_sd``, known as well as from ``repeats`` repeats."""

    log_sd: float
    repeats: float


@dataclass(frozen=True)
class Standing:
    """A trial among those that may be the best."""

    trial: int  # its number
    measurements: int  # how often it was measured
    best: float  # probability that none is better
    rivals: float  # probability that it is more than ``EQUAL`` better than the first
    behind: float  # share of the objective that it is behind the first


@dataclass(frozen=True)
class Verdict:
    """Standings of the candidates of a search: the first, and all whose probability to be the best
    is not negligible, in the order of their medians.
    """

    standings: tuple[Standing, ...]
    confidence: float  # probability that none is more than ``EQUAL`` better than the first
    noise: Noise  # between runs

    @property
    def first(self) -> Standing:
        return self.standings[0]

    @property
    def runner_up(self) -> Standing | None:
        """The most probable of the others."""
        return max(self.standings[1:], key=lambda s: s.best, default=None)


def noise_of(run: Run, prior: float = NOISE_WEIGHT) -> Noise:
    """The spread between runs of one configuration, from all repeats and the prior.

    The prior is scaled inverse chi-squared with ``prior`` degrees of freedom. Runs follow Student's
    t, fitted by expectation maximization: one disturbed run must not make all look uncertain.
    """
    left: list[Floats] = []
    for trial in run.trials.values():
        logs = _logs(trial.measurements)
        if len(logs) > 1:
            left.append(logs - np.median(logs))
    if not left:
        return Noise(NOISE_LOG_SD, prior)
    rest = np.concatenate(left)
    if not np.any(rest):  # equal to the last digit, as times never are: a loss, a number of bytes
        return Noise(EXACT_LOG_SD, EXACT_REPEATS)
    repeats = len(rest) - len(left)
    # The deviations from a median of n are too small: by (n - 1) / n in the mean of their squares.
    scale = repeats / len(rest)
    variance = NOISE_LOG_SD**2
    for _ in range(20):
        weight = (TAILS + 1) / (TAILS + rest**2 / (scale * variance))
        variance = (prior * NOISE_LOG_SD**2 + float(np.sum(weight * rest**2))) / (prior + repeats)
    return Noise(float(np.sqrt(variance)), prior + repeats)


def verdict(run: Run, running: Collection[int] = ()) -> Verdict | None:
    """Compare the successful trials; None before the first, or if an objective is not positive.

    Trials that are ``running`` again count as if they had confirmed their median.
    """
    first = run.best
    done = [t for t in run.trials.values() if t.ok and t.objective is not None and not t.violated]
    if first is None or any((t.objective or 0.0) <= 0 for t in done):
        return None
    sign = 1.0 if run.maximize else -1.0
    done.sort(key=lambda t: (t is not first, -sign * (t.objective or 0.0), t.number))
    centre = sign * np.log(np.array([t.objective for t in done], dtype=float))
    count = np.array([len(t.measurements) + (t.number in running) for t in done])
    noise = noise_of(run, FINAL_WEIGHT)
    spread = noise.log_sd * np.sqrt([median_variance(n) for n in count])
    # Leave out trials far behind, in deviations of the difference: they only cost time.
    near = centre > centre[0] - 8 * np.hypot(spread, spread[0]) - EQUAL
    done = [t for t, is_near in zip(done, near, strict=True) if is_near]
    best, rivals, confidence = _chances(centre[near], spread[near], noise.repeats)
    standings = [
        Standing(t.number, int(n), float(b), float(r), float(-np.expm1(c - centre[0])))
        for t, n, b, r, c in zip(done, count[near], best, rivals, centre[near], strict=True)
    ]
    kept = [s for i, s in enumerate(standings) if i == 0 or s.best >= NEGLIGIBLE]
    return Verdict(tuple(kept), confidence, noise)


def _chances(centre: Floats, spread: Floats, freedom: float) -> tuple[Floats, Floats, float]:
    """Probabilities to be the best, to beat the first, and that the first is as good as the best.

    Student's t around each centre; the spread's own uncertainty is common to all. The draws are the
    same every time, so that a resumed search decides like an uninterrupted one.
    """
    rng = np.random.default_rng(0)
    scale = np.sqrt(freedom / rng.chisquare(freedom, size=(DRAWS, 1)))
    drawn = centre + scale * spread * rng.standard_normal((DRAWS, len(centre)))
    winners = np.bincount(np.argmax(drawn, axis=1), minlength=len(centre)) / DRAWS
    rivals = np.mean(drawn > drawn[:, :1] + EQUAL, axis=0)
    confidence = float(np.mean(drawn[:, 0] >= drawn.max(axis=1) - EQUAL))
    return np.asarray(winners, dtype=float), np.asarray(rivals, dtype=float), confidence


def next_repeat(
    run: Run,
    confidence: float,
    max_repeats: int,
    running: Collection[int] = (),
    possible: Callable[[Trial], bool] = lambda _: True,
) -> Trial | None:
    """The trial to be measured again, or None when that would settle nothing more.

    It is the first or the rival that is most likely better, whichever was measured less: that one
    contributes most to the uncertainty of their difference. Trials in doubt come before them. A
    winner measured only once is not final.

    The winner is final at this ``confidence`` (see ``Verdict``), or after ``max_repeats`` of all
    trials together since the last proposal. Trials that are ``running`` again are not repeated at
    the same time; ``possible`` says whether one can be measured again here and now.
    """
    if repeats_since_proposal(run) + len(running) >= max_repeats:
        return None
    now = verdict(run, running)
    if now is None:
        return None
    order = _in_doubt(run, now)
    if not order and now.confidence < confidence:
        for rival in sorted(now.standings[1:], key=lambda s: -s.rivals):
            order += [s.trial for s in sorted((now.first, rival), key=lambda s: s.measurements)]
    if not order and now.first.measurements < 2:
        order = [now.first.trial]
    for number in order:
        if number not in running and possible(run.trials[number]):
            return run.trials[number]
    return None


def _in_doubt(run: Run, now: Verdict) -> list[int]:
    """Trials that need one more measurement, to tell which of the earlier ones to believe.

    The first, if it failed as often as it was measured: nobody would train with it. And any whose
    two measurements differ by more than noise explains, if the better one would make it the first:
    the median of a good and a disturbed run describes neither.
    """
    first = run.trials[now.first.trial]
    doubtful = [first.number] if first.failed_repeats >= len(first.measurements) else []
    sign = 1.0 if run.maximize else -1.0
    to_beat = sign * np.log(first.objective or 1.0) - EQUAL
    apart = TAILS * now.noise.log_sd
    for trial in run.trials.values():
        if trial.ok and len(trial.measurements) == 2:
            logs = sign * _logs(trial.measurements)
            if np.ptp(logs) > apart and logs.max() > to_beat:
                doubtful.append(trial.number)
    return doubtful


def repeats_since_proposal(run: Run) -> int:
    """Completed repeats since the last proposal."""
    last = max((t.proposed_t for t in run.trials.values()), default=0.0)
    attempts = (a for t in run.trials.values() for a in t.attempts)
    return sum(a.repeat and a.started_t >= last and a.completed for a in attempts)


def _logs(values: Sequence[float]) -> Floats:
    return np.asarray(np.log([v for v in values if v > 0]), dtype=float)


def median_variance(count: int) -> float:
    """Variance of the median of ``count`` measurements, as a share of one measurement's variance.

    pi / 2n for many; exact for one, 2 % off for odd counts, up to a fifth too large for even ones.
    """
    return np.pi / (2 * count + np.pi - 2)
