"""The layout for the nodes that are left: what it keeps, and what it learns from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import NotPricedError, Pricing, Run, Trial
from analysis.run.trial import Attempt
from search_spaces import Candidates, SearchSpace, SpaceError, load_space
from support.priced_run import priced_run
from workflows.training_plan import TrainingPlan, _slow_nodes, layouts


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return load_space("gpt_22b_frontier")


@pytest.fixture(scope="module")
def searched(space: SearchSpace) -> Run:
    return priced_run(space, 20, {})


@pytest.fixture(scope="module")
def base(searched: Run) -> Mapping[str, Any]:
    return max(searched.trials.values(), key=lambda trial: trial.objective or 0.0).config


def started(config: Mapping[str, Any], nodes: int, kind: str, **result: Any) -> Run:
    """A training that has started once."""
    names = tuple(f"n{i}" for i in range(nodes))
    attempt = Attempt(1, "", names, 0.0, ended_t=600.0, kind=kind, steps=100)
    trial = Trial(1, dict(config), 0.0, attempts=[attempt], kind=kind, ended_t=600.0)
    trial.result = result
    return Run(Path(), trials={1: trial})


def test_a_layout_for_other_nodes_keeps_the_batch_and_the_formats() -> None:
    slow = load_space("placements_slow_links")
    run = priced_run(slow, 20, {})
    base = next(t.config for t in run.trials.values() if t.config["quantize_gradients"])
    kept = slow.facts(base)
    for nodes in (1, 2, 3):
        plan = TrainingPlan.of(run, slow, base, nodes)
        facts = plan.space.facts(plan.config)
        assert plan.nodes <= nodes
        for name in ("global_batch_size", "quantize_weights", "quantize_gradients", "precision"):
            assert facts[name] == kept[name], name


def test_a_search_without_a_number_of_nodes_was_on_one() -> None:
    tiny = load_space("tiny_cpu")
    assert "num_nodes" not in tiny.parameters
    run = priced_run(tiny, 5, {})
    base = max(run.trials.values(), key=lambda trial: trial.objective or 0.0).config
    plan = TrainingPlan.of(run, tiny, base, 1)
    assert plan.nodes == 1 and plan.expected["tokens_per_day"] > 0


def test_fewer_nodes_get_a_layout_that_fits_and_trains_less_a_day(
    searched: Run, space: SearchSpace, base: Mapping[str, Any]
) -> None:
    plans = [TrainingPlan.of(searched, space, base, nodes) for nodes in (1, 2, 7, 8)]
    assert [plan.nodes for plan in plans] == [1, 2, 4, 8]  # no other number divides the batch
    speeds = [plan.expected["tokens_per_day"] for plan in plans]
    assert speeds == sorted(speeds)
    assert all(plan.expected["fits"] > 0.5 for plan in plans)


def test_what_training_measured_counts_as_a_trial(
    searched: Run, space: SearchSpace, base: Mapping[str, Any]
) -> None:
    first = TrainingPlan.of(searched, space, base, 8)
    slow_s = 1.4 * first.expected["step_time_s"]
    slow = started(first.config, 8, "node_failure", step_time_s={"median": slow_s})
    second = TrainingPlan.of(searched, space, base, 8, slow)
    assert second.config != first.config
    assert second.expected["step_time_s"] < slow_s
    too_large = started(first.config, 8, "oom")
    assert TrainingPlan.of(searched, space, base, 8, too_large).config != first.config


def test_a_layout_that_ran_fits_whatever_the_model_says(
    searched: Run, space: SearchSpace, base: Mapping[str, Any]
) -> None:
    first = TrainingPlan.of(searched, space, base, 8)
    compared = Candidates(layouts(space, base, 8))
    raw = compared.configs(compared.indices(1000, np.random.default_rng(0), [], 8))
    hopeless = raw[int(np.argmin(Pricing(compared.space).predict(raw).fits))]
    fast = {"step_time_s": {"median": 0.5 * first.expected["step_time_s"]}}
    plan = TrainingPlan.of(searched, space, base, 8, started(hopeless, 8, "ok", **fast))
    assert plan.config == compared.space.canonical(hopeless)
    assert plan.expected["fits"] == 1.0


def test_a_trainings_own_failures_and_times_replace_the_priors(
    searched: Run, space: SearchSpace, base: Mapping[str, Any]
) -> None:
    before = TrainingPlan.of(searched, space, base, 8)
    assert before.expected["restart_s"] > 300  # until Slurm calls a node dead
    times = {"step_time_s": {"median": before.expected["step_time_s"]}, "elapsed_s": 86400.0}
    training = started(before.config, 8, "node_failure", tail_s=11.0, start_up_s=9.0, **times)
    training.trials[1].result |= {"checkpoint_s": {"median": 7.0}}
    after = TrainingPlan.of(searched, space, base, 8, training)
    assert after.expected["restart_s"] == 20.0
    assert after.expected["checkpoint_s"] == pytest.approx(7.0, rel=0.01)
    # One failure known in 238 node-days and one seen in 8.
    assert after.basis.startswith("0.00813 failures per node and day (prior and 1 of this run)")
    assert after.expected["checkpoint_interval_s"] < before.expected["checkpoint_interval_s"]
    stopped = started(before.config, 8, "cancelled", **times)
    calm = TrainingPlan.of(searched, space, base, 8, stopped).basis
    assert calm.startswith("0.00406 failures per node and day (prior and 0 of this run)")


def test_a_node_with_which_every_start_was_too_slow_is_named(
    searched: Run, space: SearchSpace, base: Mapping[str, Any]
) -> None:
    plan = TrainingPlan.of(searched, space, base, 4)
    expected_s, config = plan.expected["step_time_s"], plan.config
    pricing = Pricing(plan.space)

    def training(*starts: tuple[str, float]) -> Run:
        """Starts on these nodes, each so many times slower than expected."""
        run = Run(Path())
        for number, (nodes, slower) in enumerate(starts, start=1):
            one = started(config, 4, "node_failure", step_time_s={"median": slower * expected_s})
            one.trials[1].attempts[0].nodes = tuple(nodes)
            run.trials[number] = replace(one.trials[1], number=number)
        return run

    def slow(*starts: tuple[str, float]) -> dict[str, float]:
        trials = searched.trials.values()
        return _slow_nodes(pricing, trials, training(*starts).trials.values())

    always = ("abcd", 3.0), ("abce", 3.0), ("bcde", 1.0)
    assert slow(*always) == {"a": pytest.approx(3.0)}
    again = TrainingPlan.of(searched, space, base, 4, training(*always))
    assert again.slow.keys() == {"a"} and "a is slow (3 times)" in str(again)
    assert not slow(("abcd", 3.0), ("abce", 1.0), ("bcde", 1.0))  # not always with it
    assert not slow(("abcd", 1.02), ("abce", 1.02), ("bcde", 1.0))  # noise
    assert not slow(("abcd", 3.0), ("abce", 3.0), ("abde", 3.0))  # never without it
    assert not slow(("abcd", 3.0), ("abce", 3.0), ("cdef", 1.0))  # a or b
    died = training(*always)  # in its first steps, which are slow on any node
    died.trials[2].attempts[0].steps = plan.space.trial.warmup_steps
    assert not _slow_nodes(pricing, searched.trials.values(), died.trials.values())


def test_own_constraints_stay_but_those_on_nodes_and_batch(
    searched: Run, space: SearchSpace, base: Mapping[str, Any]
) -> None:
    wide = layouts(space, base, 3, [base])
    assert wide.canonical(base)  # has its place, though on more nodes than there are
    assert "num_nodes <= 3" in str(wide.first_violation(base))


def test_what_cannot_be_planned_is_refused_with_the_reason() -> None:
    toy = {
        "version": 1, "name": "toy", "parameters": {"mbs": [1, 2]},
        "trainer": {"command": ["train", "{mbs}"]}, "objective": {"maximize": "speed"},
    }  # fmt: skip
    with pytest.raises((SpaceError, NotPricedError), match="mbs and gas"):
        TrainingPlan.of(Run(Path()), load_space(toy), {"mbs": 1}, 2)
