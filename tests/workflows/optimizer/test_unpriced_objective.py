"""Objectives that the cost model has no word for: measurements decide, and it knows what fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import SearchSpace, check, load_space
from workflows.optimizer.registry import make_policy

SPACE = """
version: 1
model: llama_8b
cluster: dgx_h100
trainer: {command: [train, "{lr}", "{tp}", "{mbs}"]}
parameters: {lr: LR, tp: [1, 2, 4, 8], mbs: [1, 2, 4, 8], zero_stage: 1, gas: 2}
objective: {minimize: val_loss}
"""


def space_of(tmp_path: Path, lr: str) -> SearchSpace:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE.replace("LR", lr))
    return load_space(path)


def loss(config: Mapping[str, Any]) -> float:
    return 2.0 + abs(math.log10(config["lr"]) + 3.0)


def search(space: SearchSpace, trials: int, fits: Callable[[Mapping[str, Any]], bool]) -> Run:
    policy, run = make_policy(space, seed=0), Run(Path())
    run.goals = [(space.objective.key, space.objective.maximize)]
    for number in range(1, trials + 1):
        proposal = policy.propose(run, max_nodes=1)
        assert proposal is not None
        trial = Trial(number, proposal.config, 0.0, proposal.by, proposal.why, proposal.expected)
        trial.kind, trial.ended_t = ("ok" if fits(proposal.config) else "oom"), float(number)
        trial.objective = loss(proposal.config) if trial.kind == "ok" else None
        run.trials[number] = trial
    return run


def test_a_loss_is_minimized_by_what_was_measured_of_it(tmp_path: Path) -> None:
    space = space_of(tmp_path, "{float: [1e-5, 1e-2], log: true}")
    pricing = Pricing(space)

    def fits(config: Mapping[str, Any]) -> bool:
        return bool(pricing.predict([config]).fits[0] > 0.5)

    run = search(space, 14, fits)
    assert {t.by for t in run.trials.values()} == {"random", "bayesian"}
    assert run.best is not None and run.best.objective == pytest.approx(2.0, abs=0.2)
    # Of the 16 choices of tp and mbs, 6 are expected to fit.
    assert sum(t.kind == "oom" for t in run.trials.values()) <= 2


def test_a_model_that_is_wrong_about_memory_filters_no_longer(tmp_path: Path) -> None:
    run = search(space_of(tmp_path, "[1e-4, 1e-3]"), 16, lambda config: config["tp"] == 1)
    assert all(t.expected["fits"] > 0.5 for t in list(run.trials.values())[:5])
    assert run.trials[16].expected.get("fits", 0.0) < 0.5  # it expects none to run that is left
    assert any(t.ok for t in run.trials.values())


def test_check_says_that_measurements_alone_decide(tmp_path: Path) -> None:
    report = check(space_of(tmp_path, "[1e-4, 1e-3]"))
    assert (
        "note: the cost model does not predict val_loss: DeepHyper searches"
        in Ranking.likely_to_fit(report)
    )
