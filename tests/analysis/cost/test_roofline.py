"""Rooflines: operations and bytes by the plan, and the rate that a measured step attained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.cost.groups import MissingFactError
from analysis.cost.model import CostModel
from analysis.cost.roofline import Roofline, roofline
from analysis.prediction.pricing import Pricing
from search_spaces import Candidates, Cluster, load_space
from search_spaces.known import framework_named
from support.gpt_jobs import gpt
from trainer.plan.jobs import FULL, NONE, SELECTIVE


@pytest.fixture(scope="module")
def pricing() -> Pricing:
    return Pricing(load_space("gpt_175b_frontier"))


def of(pricing: Pricing, **changes: Any) -> Roofline:
    """The roofline of a job, and of one with changes."""
    base = Candidates(pricing.space).draw(1, np.random.default_rng(0), [], 10**6)[0]
    base |= {"recompute": "selective", "tp": 8, "pp": 4, "mbs": 1, "gas": 10}
    return roofline(pricing.model, pricing.jobs_of([base, {**base, **changes}]))


def test_a_repeated_forward_pass_is_a_third_more_operations(pricing: Pricing) -> None:
    some, full = of(pricing, recompute="full").flops
    assert 1.25 < full / some < 4 / 3


def test_more_tokens_at_once_read_each_weight_for_more_operations(pricing: Pricing) -> None:
    one, four = of(pricing, mbs=4).intensity
    assert four > 1.5 * one
    # The same micro-batches twice as often are the same work per byte, but for the update.
    once, twice = of(pricing, gas=20).intensity
    assert once < twice < 1.1 * once


def test_the_attained_rate_is_the_operations_over_the_measured_time(pricing: Pricing) -> None:
    found = of(pricing)
    assert found.attained_tflops(np.array([10.0, 20.0])) == pytest.approx(
        found.flops / [10e12, 20e12]
    )


def test_no_predicted_step_is_above_the_roof(pricing: Pricing) -> None:
    configs = Candidates(pricing.space).draw(300, np.random.default_rng(1), [], 10**6)
    prediction = pricing.predict(configs)
    found = roofline(pricing.model, prediction.jobs)
    roof = np.minimum(found.peak_tflops, found.intensity * found.gb_per_s / 1e3)
    assert (found.attained_tflops(prediction.step_time_s) < roof).all()


def test_without_the_rate_of_memory_there_is_none(pricing: Pricing) -> None:
    jobs = pricing.jobs_of(Candidates(pricing.space).draw(1, np.random.default_rng(0), [], 10**6))
    cluster = pricing.model.cluster.model_copy(update={"memory_gb_per_s": None})
    with pytest.raises(MissingFactError, match="memory_gb_per_s"):
        roofline(replace(pricing.model, cluster=cluster), jobs)


@pytest.mark.parametrize("framework", ["megatron-lm", "meshtune", "torchtitan"])
def test_selective_recomputation_repeats_what_the_framework_does_not_keep(framework: str) -> None:
    """Korthikanti's repeats attention, the built-in trainer's neither it nor products, torchtitan's
    every second product: of a GPT those for keys, from attention, and up, 6 of 12 h^2."""
    model = CostModel(Cluster.named("dgx_a100"), framework_named(framework))
    jobs = gpt(tp=1, recompute=np.array([NONE, SELECTIVE, FULL]))
    none, some, full = roofline(model, jobs).flops
    shape = jobs.model
    core = 4 * jobs.global_batch * shape.num_layers * shape.seq_length**2 * shape.hidden_size
    repeated = {"megatron-lm": core[0], "meshtune": 0, "torchtitan": (full - none - core[0]) / 2}
    assert some - none == pytest.approx(repeated[framework], rel=0.01)
    assert framework != "meshtune" or some == none
    price = model.predict(jobs).time.recompute
    assert price[0] == 0 and 0 < price[1] < 0.5 * price[2]
