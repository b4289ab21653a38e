"""The share of a long run that trains, through failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.goodput import DAY_S, best_interval_s, state_bytes, useful_share
from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
from analysis.prediction.start_up import StartUp
from analysis.run.fold import Run
from analysis.run.trial import Attempt, Trial
from foundation.quantities import number
from search_spaces import load_space

RECIPE = {"num_nodes": 16, "tp": 4, "pp": 16, "vpp": 1, "mbs": 1, "gas": 320, "zero_stage": 1}
RECIPE |= {"sequence_parallel": False, "recompute": "full"}


@pytest.fixture
def pricing() -> Pricing:
    return Pricing(load_space("gpt_175b_frontier"))


@pytest.mark.parametrize("save_s", [1.0, 60.0, 1800.0])
def test_no_other_interval_keeps_more(save_s: float) -> None:
    mtbf_s = 6 * 3600.0
    best_s = best_interval_s(mtbf_s, save_s)
    others_s = best_s * np.geomspace(0.1, 10, 201)
    most = useful_share(mtbf_s, others_s, save_s, 300.0).max()
    assert useful_share(mtbf_s, best_s, save_s, 300.0) == pytest.approx(most, abs=1e-3)


def test_a_job_that_hardly_fails_loses_what_its_checkpoints_take() -> None:
    assert useful_share(1e12, 900.0, 100.0, 300.0) == pytest.approx(0.9, abs=1e-6)
    assert useful_share(1.0, 900.0, 100.0, 3000.0) == 0  # and one that always fails never ends


def test_a_checkpoint_has_the_weights_and_the_optimizer_states(pricing: Pricing) -> None:
    model = pricing.space.model
    assert model is not None
    [told] = state_bytes(pricing.predict([RECIPE]).jobs)
    assert told == pytest.approx(14 * model.num_parameters, rel=0.01)


def test_a_cluster_states_how_often_its_nodes_fail(pricing: Pricing) -> None:
    prediction = pricing.predict([RECIPE])
    prior = pricing.failures.goodput(prediction)
    facts = {"node_failures_per_day": 0.05, "storage_gb_per_s": 0.1}
    cluster = pricing.space.cluster
    assert cluster is not None
    stated = Pricing(replace(pricing.space, cluster=cluster.model_copy(update=facts))).failures
    worse = stated.goodput(prediction)
    assert worse.save_s == pytest.approx(10 * prior.save_s)
    assert worse.share < 0.9 < 0.97 < prior.share
    assert "0.0042 failures per node and day (prior)" in pricing.failures.basis()
    assert "0.05 failures per node and day (stated), checkpoints at 0.1 GB/s (stated)" in (
        stated.basis()
    )


def test_a_run_measures_its_checkpoints_and_its_starts(pricing: Pricing) -> None:
    [before] = pricing.failures.goodput(pricing.predict([RECIPE])).save_s
    step_s = float(pricing.predict([RECIPE]).step_time_s[0])
    result = {"step_time_s": {"median": step_s}, "checkpoint_s": {"median": before / 8}}
    trial = Trial(0, RECIPE, 0.0, kind="ok", objective=1.0, result=result)
    nodes = tuple(f"n{number}" for number in range(16))
    trial.attempts = [Attempt(1, "0", nodes, 0.0, ended_t=4 * step_s + 500.0, kind="ok")]
    pricing.learn(Run(Path("nowhere"), trials={0: trial}))
    after = pricing.failures.goodput(pricing.predict([RECIPE]))
    assert after.save_s == pytest.approx(before / 8, rel=0.01)
    assert after.restart_s == pytest.approx(300 + 500 + before, rel=0.01)
    assert "(measured) per node, start-up measured" in pricing.failures.basis()


def test_a_training_measures_what_a_failure_costs_at_each_number_of_nodes(pricing: Pricing) -> None:
    def start(number: int, count: int, kind: str, **result: float) -> Trial:
        nodes = tuple(f"n{node}" for node in range(count))
        attempt = Attempt(1, "", nodes, 0.0, ended_t=3600.0, kind=kind)
        return Trial(number, RECIPE, 0.0, kind=kind, attempts=[attempt], result=result)

    starts = [
        start(1, 16, "node_failure", elapsed_s=3600.0, tail_s=50.0, idle_s=900.0),
        start(2, 12, "node_failure", elapsed_s=100.0, idle_s=4.0),  # before its first step
        start(3, 16, "preempted", elapsed_s=3600.0, tail_s=10.0, idle_s=6.0, between_share=0.2),
        start(4, 16, "cancelled", elapsed_s=3600.0, tail_s=99.0),  # no failure
    ]
    config = [RECIPE | {"num_nodes": nodes, "gas": gas} for nodes, gas in ((16, 320), (12, 20))]
    prediction = pricing.predict(config)
    known = replace(
        pricing.failures,
        start_up=StartUp.through([(4, 40.0), (8, 80.0), (16, 160.0)]) or pricing.failures.start_up,
    )
    after = known.observed(starts)
    assert after.seen == 3
    found = after.goodput(prediction)
    wide, narrow = found.restart_s
    assert wide == pytest.approx(30 + 5 + known.start_up.seconds(16))
    # What is neither a step nor a checkpoint is lost as well.
    whole = replace(after, between_share=0.0).goodput(prediction).share
    assert found.share == pytest.approx(0.8 * whole)
    assert wide - narrow == pytest.approx(4 * known.start_up.per_node_s) and wide - narrow > 20
    # A checkpoint stops training as long as seen on the nearest number of nodes.
    for rates, nearest in (({16: 2.0, 4: 1.0}, [2.0, 2.0]), ({16: 2.0, 11: 1.0}, [2.0, 1.0])):
        save_s = replace(after, saved_gb_per_s=rates).goodput(prediction).save_s
        node_gb = state_bytes(prediction.jobs) / 1e9 / prediction.num_nodes
        assert save_s == pytest.approx(node_gb / np.array(nearest))
    assert known.observed([]) == known


def test_the_days_are_those_after_failures(pricing: Pricing) -> None:
    ranking = Ranking.of_one(pricing, RECIPE)
    days = float(ranking.prediction.days_to_train(1e12)[0] / ranking.goodput.share[0])
    assert f"after failures: {number(days)} days, {days * 24 * 16:,.0f} node-hours" in (
        ranking.explanation(1e12)
    )
    head, row, *_ = ranking.table(1e12).splitlines()
    assert "days for 1 trillion tokens  node-hours" in head and number(days) in row.split()
    long = ranking.explanation(5e15) + ranking.table(5e15)
    assert "days for 5,000 trillion tokens" in long and "e+" not in long
    assert "days" not in ranking.table()


def test_no_checkpoint_is_due_before_a_step_has_ended(pricing: Pricing) -> None:
    often = replace(pricing.failures, per_node_day=1e4)
    prediction = pricing.predict([RECIPE])
    assert often.goodput(prediction).interval_s == prediction.step_time_s
    assert prediction.step_time_s[0] > DAY_S / (16 * 1e4)
