"""The guided search over parameters that the model does not price, beside some that it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.prediction.pricing import Pricing
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from search_spaces import SearchSpace, load_space
from search_spaces.points.candidates import Candidates
from support.guided_search import ask, search
from workflows.optimizer.registry import make_policy

KERNELS = {"eager": 0.7, "flash": 0.9, "fused": 1.0}
WORKERS = {1: 0.85, 2: 0.95, 4: 1.0, 8: 0.98}
DEGREES = ("tp", "pp", "mbs", "gas")


@pytest.fixture(scope="module")
def unpriced(tmp_path_factory: pytest.TempPathFactory) -> SearchSpace:
    """Degrees, and a kernel and workers beside them that have no price."""
    path = tmp_path_factory.mktemp("space") / "kernels.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 2, tp: [1, 2, 4, 8], pp: [1, 2], mbs: [1, 2, 4], gas: [8, 16], "
        "zero_stage: 1, kernel: [eager, flash, fused], workers: [1, 2, 4, 8]}\n"
        "objective: {maximize: tokens_per_second}\n"
    )
    return load_space(str(path))


@pytest.fixture(scope="module")
def as_predicted(unpriced: SearchSpace) -> Callable[[Mapping[str, Any]], float]:
    """As fast as the model says, times what kernel and workers allow."""
    pricing = Pricing(unpriced)

    def speed(config: Mapping[str, Any]) -> float:
        figure = pricing.objective(pricing.predict([config]))
        assert figure is not None
        return float(figure[0]) * KERNELS[config["kernel"]] * WORKERS[config["workers"]]

    return speed


@pytest.fixture(scope="module")
def searched(unpriced: SearchSpace, as_predicted: Callable[[Mapping[str, Any]], float]) -> Run:
    return search(make_policy(unpriced, seed=0), 18, as_predicted)


def degrees_of(run: Run) -> list[tuple[Any, ...]]:
    return [tuple(t.config[name] for name in DEGREES) for t in run.trials.values()]


def test_parameters_without_a_price_are_settled_in_five_trials(
    searched: Run, as_predicted: Callable[[Mapping[str, Any]], float]
) -> None:
    """Beside degrees that have one: whatever the right values are, each is tried once."""
    first = searched.trials[1].config
    best = as_predicted({**first, "kernel": "fused", "workers": 4})
    assert max(searched.trials[n].objective or 0 for n in range(1, 6)) > 0.95 * best


def test_values_without_a_price_are_compared_at_the_same_degrees_first(searched: Run) -> None:
    """At others an error of the model would be taken for theirs; three trials have all kernels."""
    first = [searched.trials[n].config for n in range(1, 4)]
    assert len(set(degrees_of(searched)[:3])) == 1
    assert {config["kernel"] for config in first} == {*KERNELS}
    assert len({config["workers"] for config in first}) == 3


def test_trials_at_once_are_not_variants_of_one_configuration(
    unpriced: SearchSpace, as_predicted: Callable[[Mapping[str, Any]], float]
) -> None:
    """Each is the favourite of another model. If variants came first as they do one at a time, all
    of each batch would be of the first trial's degrees, with any seed.
    """
    others = 0
    for seed in range(12):
        policy = make_policy(unpriced, seed=seed)
        run = search(policy, 1, as_predicted)
        for number in range(2, 6):
            proposal = ask(policy, run)
            run.trials[number] = Trial(number, proposal.config, 0.0, expected=proposal.expected)
        others += len({*degrees_of(run)}) > 1
    assert others >= 4


def test_what_was_slow_is_not_run_again_with_another_kernel(
    unpriced: SearchSpace, searched: Run, as_predicted: Callable[[Mapping[str, Any]], float]
) -> None:
    """A single slow run may have been disturbed; its variants are no way to find out."""
    slow = degrees_of(searched)[0]

    def speed(config: Mapping[str, Any]) -> float:
        at = tuple(config[name] for name in DEGREES)
        return as_predicted(config) * (0.3 if at == slow else 1.0)

    assert degrees_of(search(make_policy(unpriced, seed=0), 6, speed)).count(slow) == 1


def test_a_kernel_that_always_crashes_is_tried_twice_at_most(
    tmp_path: Path, as_predicted: Callable[[Mapping[str, Any]], float]
) -> None:
    """Once with other new values, and once where only the kernel can be to blame."""
    path = tmp_path / "kernels.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 2, tp: [1, 2, 4, 8], pp: [1, 2], mbs: 1, gas: 16, zero_stage: 1, "
        "kernel: [eager, flash, fused], workers: [1, 2, 4, 8]}\n"
        "objective: {maximize: tokens_per_second}\n"
    )
    run = search(
        make_policy(load_space(str(path)), seed=0),
        8,
        lambda c: None if c["kernel"] == "flash" else as_predicted(c),
        "crash",
    )
    assert 1 <= [t.config["kernel"] for t in run.trials.values()].count("flash") <= 2


def test_trials_that_wait_for_another_start_do_not_keep_values_from_being_compared(
    unpriced: SearchSpace, searched: Run
) -> None:
    """A trial was put aside or lost its node: its attempt has ended, and it has not."""
    policy, run = make_policy(unpriced, seed=0), Run(Path())
    waiting = Trial(4, {**searched.trials[16].config}, 0.0)
    run.trials = {n: searched.trials[n] for n in range(1, 4)} | {4: waiting}
    told = []
    for ended_t in (None, 1.0):
        waiting.attempts = [
            Attempt(1, "4.1", ("n1",), 0.0, ended_t=ended_t, kind=ended_t and "node_failure")
        ]
        proposal = ask(policy, run)
        told.append([proposal.config[name] for name in DEGREES])
    first = [run.trials[1].config[name] for name in DEGREES]
    assert told[0] != first and told[1] == first


def test_a_search_does_not_end_among_variants_of_a_few_configurations(searched: Run) -> None:
    """Those that cannot be the best are left out, and what is left to gain is open till then."""
    tried = degrees_of(searched)
    stated = [n for n, t in searched.trials.items() if "gain" in t.expected]
    assert stated and len(set(tried[: stated[0] - 1])) >= 8
    assert max(tried.count(at) for at in tried) <= 6


def test_variants_come_before_what_does_not_fit(tmp_path: Path) -> None:
    """Only tp 8 has room. Its slower variants are no good trials, those of tp 1 are none at all."""
    path = tmp_path / "kernels.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 1, tp: [1, 8], pp: 1, mbs: 1, gas: 16, zero_stage: 0, "
        "kernel: [eager, flash, fused], workers: [1, 2, 4]}\n"
        "objective: {maximize: tokens_per_second}\n"
    )
    run = search(
        make_policy(load_space(str(path)), seed=0),
        9,
        lambda c: 1e4 * KERNELS[c["kernel"]] * WORKERS[c["workers"]] if c["tp"] == 8 else None,
    )
    assert [t.config["tp"] for t in run.trials.values()] == [8] * 9


def test_parameters_that_the_model_does_not_price_are_tried_early_and_learnt(
    tmp_path: Path,
) -> None:
    """Beside tp, pp and mbs: a kernel, workers and a switch, whose best levels come last."""
    path = tmp_path / "switches.yaml"
    path.write_text(
        "version: 1\nmodel: llama_8b\ncluster: dgx_h100\ntrainer: {command: [train]}\n"
        "parameters: {num_nodes: 2, tp: [1, 2, 4, 8], pp: [1, 2], mbs: [1, 2], gas: 16, "
        "zero_stage: 1, kernel: [eager, sdpa, flash], workers: [1, 2, 4, 8], graphs: [false, true]}"
        "\nobjective: {maximize: tokens_per_second_per_gpu}\n"
    )
    space = load_space(str(path))
    pricing = Pricing(space)
    factors: dict[str, dict[Any, float]] = {
        "kernel": {"eager": 0.7, "sdpa": 0.9, "flash": 1.0},
        "workers": {1: 0.8, 2: 0.9, 4: 0.97, 8: 1.0},
        "graphs": {False: 0.85, True: 1.0},
    }

    def speed(config: Mapping[str, Any]) -> float | None:
        prediction = pricing.predict([config])
        figure = pricing.objective(prediction)
        assert figure is not None
        slower = np.prod([levels[config[name]] for name, levels in factors.items()])
        return float(figure[0] * slower) if prediction.fits[0] > 0.5 else None

    candidates = Candidates(space).draw(999, np.random.default_rng(0), [], 64)
    best = max(speed(c) or 0.0 for c in candidates)
    run = search(make_policy(space, seed=0), 12, speed)
    reached = [(t.objective or 0.0) / best for t in run.trials.values()]
    assert max(reached[:6]) > 0.95
    ran = [share for share in reached[4:] if share]
    assert np.mean(ran) > 0.8  # what is learnt of a level holds elsewhere
    assert len(ran) >= len(reached[4:]) - 1  # no variant of what ran out of memory is tried
