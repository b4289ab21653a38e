"""Searches of a policy whose trials end at once, at a speed that a function says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from analysis.run.fold import Run
from analysis.run.trial import Trial
from workflows.optimizer.policy import Policy, Proposal

Speed = Callable[[Mapping[str, Any]], float | None]


def tell(run: Run, proposal: Proposal, objective: float | None, kind: str = "oom") -> None:
    number = len(run.trials) + 1
    trial = Trial(
        number, dict(proposal.config), 0.0, proposal.by, proposal.why, dict(proposal.expected)
    )
    trial.kind, trial.objective = ("ok", objective) if objective else (kind, None)
    run.trials[number] = trial


def ask(policy: Policy, run: Run, max_nodes: int = 64) -> Proposal:
    proposal = policy.propose(run, max_nodes)
    assert proposal is not None
    return proposal


def search(policy: Policy, trials: int, speed: Speed, kind: str = "oom") -> Run:
    run = Run(Path())
    for _ in range(trials):
        proposal = ask(policy, run)
        tell(run, proposal, speed(proposal.config), kind)
    return run


def choosers(run: Run) -> list[str]:
    return [t.by for t in run.trials.values()]
