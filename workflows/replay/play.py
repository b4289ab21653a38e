"""``meshtune replay``: searches on recorded measurements.

Each landscape of a sweep (rows that differ only in the configuration) becomes a space of its own,
and a trial's outcome is the recorded row. The policies are those of ``meshtune search``; they see
the model's shape, the cluster's facts and completed trials, never the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis import Pricing, Run, Trial
from foundation.quantities import counted
from workflows.optimizer.policy import Policy
from workflows.optimizer.registry import make_policy
from workflows.replay.landscape import Landscape

NEAR, NEARER = 0.05, 0.01  # of the best


@dataclass
class Played:
    """One replay of one landscape with one seed."""

    shares: list[float] = field(default_factory=list)  # see ``Landscape.share``, by trial
    seconds: float = 0.0  # total time of the policy
    run: Run = field(default_factory=lambda: Run(Path()))  # as the policy saw it

    def trials_to(self, share: float) -> int | None:
        """Trials up to the first within a share of the best; None if there is none."""
        near = [n for n, reached in enumerate(self.shares, start=1) if reached >= 1 - share]
        return near[0] if near else None

    def best_of(self, count: int) -> float:
        return max(self.shares[:count], default=0.0)

    def failed_share(self) -> float:
        first = self.shares[:16]
        return sum(share == 0 for share in first) / max(len(first), 1)

    def in_interval(self) -> list[bool]:
        """Whether each predicted trial that ran was within its interval."""
        return [
            t.expected["low"] <= t.objective <= t.expected["high"]
            for t in self.run.trials.values()
            if t.ok and t.objective is not None and "low" in t.expected
        ]


def policy_for(
    landscape: Landscape, policy: str, seed: int, pricing: Pricing | None = None
) -> Policy:
    """A policy of ``meshtune search`` on a landscape, with its space's prices or with others."""
    return make_policy(landscape.space, seed, policy, pricing=pricing, only=landscape.configs)


def play(
    landscape: Landscape,
    policy: Policy,
    seed: int,
    parallel: int = 1,
    max_trials: int | None = None,
    until: float | None = NEARER,
) -> Played:
    """Search a landscape until it is exhausted, or one of the limits is reached.

    Args:
        seed: of the choice among a configuration's repeats.
        parallel: concurrent trials; all of them complete before more are proposed.
        until: end once a trial is within this share of the best, after 16 trials at the earliest.
    """
    rng = np.random.default_rng(seed)
    played = Played()
    run = played.run
    run.subject_to = landscape.space.subject_to
    size = len(landscape.configs)
    while len(run.trials) < min(size, max_trials or size):
        batch = []
        for _ in range(min(parallel, size - len(run.trials))):
            began = time.perf_counter()
            proposal = policy.propose(run, 2**31)
            played.seconds += time.perf_counter() - began
            if proposal is None:
                break
            number = len(run.trials) + 1
            run.trials[number] = Trial(
                number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected
            )
            batch.append(run.trials[number])
        if not batch:
            break
        for trial in batch:
            played.shares.append(_complete(run, landscape, trial, rng))
        found = played.trials_to(until) if until is not None else None
        if found is not None and len(run.trials) >= 16:
            break
    return played


def _complete(run: Run, landscape: Landscape, trial: Trial, rng: np.random.Generator) -> float:
    """Complete a trial with a recorded outcome; returns its share of the best."""
    # If one repeat ran, the others failed for reasons outside the configuration.
    every = landscape.answers[tuple(trial.config.items())]
    recorded = [a for a in every if a.ok] or every
    answer = recorded[int(rng.integers(len(recorded)))]
    trial.ended_t, trial.kind = 0.0, answer.kind
    if answer.ok:
        trial.objective, trial.result = answer.objective, answer.result
        run.check_bounds(trial, landscape.bounded(answer))
    return landscape.share(trial.config)


def summary(played: Mapping[str, Sequence[Played]], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Metrics per landscape and overall, as the command prints and writes them.

    A replay that never comes near the best counts one trial more than there are configurations.
    """
    rows = [_row(key, games, sizes[key]) for key, games in played.items()]
    overall: dict[str, Any] = {"landscapes": len(rows)}
    for name in ("trials_to_5pct", "trials_to_1pct"):
        values = np.array([row[name] for row in rows])
        overall[name] = {
            "geometric_mean": float(np.exp(np.log(values).mean())),
            "median": float(np.median(values)),
            "worst": float(values.max()),
        }
    for name in ("best_of_8", "best_of_16", "failed_share", "proposer_s"):
        overall[name] = float(np.mean([row[name] for row in rows]))
    inside = [hit for games in played.values() for g in games for hit in g.in_interval()]
    overall["in_interval"] = float(np.mean(inside)) if inside else None
    overall["landscapes_with_5pct_in_first_8"] = sum(r["worst_best_of_8"] >= 1 - NEAR for r in rows)
    return {"overall": overall, "landscapes": rows}


def _row(key: str, games: Sequence[Played], size: int) -> dict[str, Any]:
    of_games: dict[str, Sequence[float]] = {
        "trials_to_5pct": [g.trials_to(NEAR) or size + 1 for g in games],
        "trials_to_1pct": [g.trials_to(NEARER) or size + 1 for g in games],
        "best_of_8": [g.best_of(8) for g in games],
        "best_of_16": [g.best_of(16) for g in games],
        "worst_best_of_8": [min(g.best_of(8) for g in games)],
        "failed_share": [g.failed_share() for g in games],
        "proposer_s": [g.seconds / max(len(g.shares), 1) for g in games],
    }
    means = {name: float(np.mean(values)) for name, values in of_games.items()}
    return {"key": key, "configs": size, **means}


def text(metrics: Mapping[str, Any]) -> str:
    lines = [
        f"{'landscape':<44} {'configs':>7} {'to 5 %':>7} {'to 1 %':>7} {'best of 8':>9} "
        f"{'of 16':>6} {'failed':>7}"
    ]
    for row in metrics["landscapes"]:
        lines.append(
            f"{row['key']:<44} {row['configs']:>7} {row['trials_to_5pct']:>7.1f} "
            f"{row['trials_to_1pct']:>7.1f} {row['best_of_8']:>9.3f} {row['best_of_16']:>6.3f} "
            f"{100 * row['failed_share']:>5.1f} %"
        )
    overall = metrics["overall"]
    for name, what in (("trials_to_5pct", "5 %"), ("trials_to_1pct", "1 %")):
        f = overall[name]
        lines.append(
            f"trials to within {what}: geometric mean {f['geometric_mean']:.2f}, "
            f"median {f['median']:.1f}, worst {f['worst']:.1f}"
        )
    lines.append(
        f"failed of the first 16: {100 * overall['failed_share']:.1f} %; "
        f"within 5 % among the first 8: {overall['landscapes_with_5pct_in_first_8']} of "
        f"{overall['landscapes']} landscapes; {overall['proposer_s']:.3f} s per proposal"
    )
    return "\n".join(lines)


def left_out(reasons: Mapping[str, int]) -> str:
    """A line on the rows of the table that were not replayed, by reason."""
    each = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
    return f"left out: {counted(sum(reasons.values()), 'row')} ({each})"


def replay(
    recorded: Iterable[Landscape],
    make: Callable[[Landscape, int], Policy],
    seeds: int,
    parallel: int = 1,
) -> dict[str, Any]:
    """Play every landscape with every seed; see :func:`summary`."""
    every = [*recorded]
    played = {
        each.key: [play(each, make(each, seed), seed, parallel) for seed in range(seeds)]
        for each in every
    }
    return summary(played, {each.key: len(each.configs) for each in every})
