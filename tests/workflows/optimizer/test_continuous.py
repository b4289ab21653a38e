"""Continuous parameters in every policy, alone and beside those that the cost model prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run
from analysis.run.trial import Trial
from search_spaces import SearchSpace
from search_spaces.parameters import Parameter, Span
from workflows.optimizer.deephyper import _hyperparameter
from workflows.optimizer.policy import Policy, Proposal
from workflows.optimizer.registry import make_policy

Make = Callable[..., SearchSpace]

LR = Span(1e-5, 1e-2, log=True)
GUIDED = {
    "model": "llama_8b",
    "cluster": "dgx_h100",
    "trainer": "{command: [train, '{tp}', '{bucket}']}",
    "parameters": "{tp: [1, 2, 4, 8], mbs: [1, 2, 4], gas: [8, 16], zero_stage: 1, "
    "bucket: {int: [1, 1000], log: true}}",
    "objective": "{maximize: tokens_per_second}",
    "trial": "{timeout: 1h}",
}


def tell(run: Run, proposal: Proposal, objective: float) -> None:
    number = len(run.trials) + 1
    trial = Trial(number, dict(proposal.config), float(number), proposal.by, proposal.why)
    trial.expected = dict(proposal.expected)
    trial.kind, trial.objective, trial.ended_t = "ok", objective, number + 0.5
    run.trials[number] = trial


def search(policy: Policy, trials: int, figure: Callable[[Mapping[str, Any]], float]) -> Run:
    objective = policy.problem.space.objective
    run = Run(Path(), goals=[(objective.key, objective.maximize)])
    for _ in range(trials):
        proposal = policy.propose(run, max_nodes=1)
        assert proposal is not None
        tell(run, proposal, figure(proposal.config))
    return run


@pytest.mark.parametrize("name", ["random", "sobol", "optuna", "deephyper"])
def test_every_policy_tries_all_magnitudes_alike(make_space: Make, name: str) -> None:
    space = make_space(
        trainer="{command: [train, '{lr}', '{opt}']}",
        parameters="{lr: {float: [1e-5, 1e-2], log: true}, opt: [adam, sgd]}",
        budget="{trials: 1000}",
    )
    policy = make_policy(space, 0, name)
    if name == "deephyper":  # what it draws before it has learnt
        policy._optimizer.num_initial = 100  # type: ignore[attr-defined]
    run = search(policy, 24, lambda config: 1.0)
    places = np.array([LR.unit(trial.config["lr"]) for trial in run.trials.values()])
    assert all(
        np.count_nonzero((low <= places) & (places <= low + 1 / 3)) >= 4
        for low in (0, 1 / 3, 2 / 3)
    )
    assert len(set(places)) == 24
    half = Run(Path())
    half.trials = {number: run.trials[number] for number in range(1, 20)}
    resumed = make_policy(space, 0, name)
    if name == "deephyper":
        resumed._optimizer.num_initial = 100  # type: ignore[attr-defined]
    again = resumed.propose(half, 1)
    assert again is not None and again.config == run.trials[20].config


def test_deephyper_is_told_the_interval_and_its_scale() -> None:
    def told(span: Span) -> Any:
        return _hyperparameter(Parameter("x", span.grid, span))

    assert told(LR) == (1e-5, 1e-2, "log-uniform")
    assert told(Span(0.0, 1.0)) == (0.0, 1.0, "uniform")
    assert told(Span(1, 1000, log=True, whole=True)) == (1, 1000, "log-uniform")
    assert _hyperparameter(Parameter("x", ("small", "big"), None, True)) == [0, 1]
    assert [*_hyperparameter(Parameter("x", (7, 3), None, False)).choices] == [3, 7]


def test_deephyper_finds_the_best_of_ordered_words_and_numbers_in_between(make_space: Make) -> None:
    sizes = [*("tiny", "small", "medium", "large", "huge")]
    space = make_space(
        trainer="{command: [train, '{lr}', '{size}', '{port}']}",
        parameters="{lr: {float: [1e-5, 1e-2], log: true}, port: {categories: [9, 5]}, "
        f"size: {{ordered: [{', '.join(sizes)}]}}}}",
        objective="{minimize: val_loss}",
        budget="{trials: 18}",
    )

    def loss(config: Mapping[str, Any]) -> float:
        return abs(math.log10(config["lr"]) + 3) + abs(sizes.index(config["size"]) - 3)

    run = search(make_policy(space, 0), 18, loss)
    assert all(t.config["lr"] in LR.grid for t in run.trials.values())  # not 0.0005023399999
    best = run.best
    assert best is not None and best.config["size"] == "large"
    assert best.objective is not None and best.objective < 0.2


def test_the_cost_model_holds_what_it_prices_and_deephyper_tunes_the_rest(make_space: Make) -> None:
    space = make_space(**GUIDED)
    pricing = Pricing(space)

    def speed(config: Mapping[str, Any]) -> float:
        figure = pricing.objective(pricing.predict([config]))
        assert figure is not None
        return float(figure[0]) * (1 - 0.1 * abs(math.log10(config["bucket"] / 100)))

    run = search(make_policy(space, 0), 14, speed)
    trials = run.trials.values()
    first = run.trials[1]
    assert first.by == "cost model" and "bucket random" in first.why
    fits = pricing.predict([t.config for t in trials]).fits
    assert all(fits > 0.5)
    # Without an end by itself: of the bucket the model cannot say what is left to gain.
    assert all("gain" not in t.expected for t in trials)
    again = [t for t in trials if t.why.startswith("the best's degrees")]
    assert len(again) >= 4
    assert run.best is not None and 40 <= run.best.config["bucket"] <= 250
    degrees = ("tp", "mbs", "gas", "zero_stage")
    ahead = {
        tuple(t.config[d] for d in degrees): speed({**t.config, "bucket": 100}) for t in trials
    }
    assert ahead[tuple(run.best.config[d] for d in degrees)] == max(ahead.values())


def test_a_constraint_on_a_held_parameter_is_kept(make_space: Make) -> None:
    space = make_space(**GUIDED, constraints="['bucket >= 100 * tp']")
    run = search(make_policy(space, 0), 4, lambda config: 1.0)
    assert run.trials[1].by == "cost model"
    assert all(space.first_violation(t.config) is None for t in run.trials.values())
