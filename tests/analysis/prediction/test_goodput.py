"""The share of a long run that trains, through failures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.prediction.goodput import DAY_S, best_interval_s, state_bytes, useful_share
from analysis.prediction.pricing import Pricing
from analysis.prediction.ranking import Ranking
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
    trial.attempts = [Attempt(1, "0", nodes, 0.0, 4 * step_s + 500.0, "ok")]
    pricing.learn(Run(Path("nowhere"), trials={0: trial}))
    after = pricing.failures.goodput(pricing.predict([RECIPE]))
    assert after.save_s == pytest.approx(before / 8, rel=0.01)
    assert after.restart_s == pytest.approx(300 + 500 + before, rel=0.01)
    assert "(measured) per node, start-up measured" in pricing.failures.basis()


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
