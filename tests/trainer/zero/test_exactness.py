"""Every placement trains the same model, holds what it says, and sends what was predicted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from support.placement_cases import (
    GRAD_CLIP,
    MODELS,
    REFERENCES,
    cases,
    holds_the_same,
    job,
    sends_what_was_predicted,
    trains_exactly,
    trains_nearly,
)

FEW_STEPS = 3
"""Of what `make test` runs; the whole sweep has more cases and steps."""


EXACT = [
    job(*names, steps=FEW_STEPS, **more)
    for *names, more in (
        ("gpt", "hpz", {}),
        ("odd", "hpz each micro-batch", {}),
        ("odd", "mics", {}),
        ("odd", "w2 g4 o4 s8", {}),
        ("odd", "w1 g4 o8", {}),
        ("tiny", "topo", {}),
        ("llama", "topo", "tp2 sp", {}),
        ("gpt", "hpz", "tp2", {"recompute": "full"}),
        ("llama", "zero1", "tp2 sp", {"recompute": "selective"}),
        ("llama", "topo s8", "pp2 vpp2", {}),
        ("llama", "zero3 once", "pp2 vpp2", {}),
    )
]


NEAR = [
    job("gpt", "zero++", steps=FEW_STEPS),
    job("odd", "zero_topo", steps=FEW_STEPS),
    job("odd", "zero++", "pp2", name="bf16", precision="bf16", steps=FEW_STEPS),
    job("odd", "zero3 int4", name="one node", ranks_per_node=8, steps=FEW_STEPS),
    job("gpt", "zero3 int4", name="fp16", precision="fp16", steps=FEW_STEPS),
]


SPOILT = [
    job("gpt", "zero_topo", name="overflow", precision="fp16", scale=2.0**20, steps=8),
    job(
        "odd",
        "zero++",
        name="one NaN",
        precision="fp16",
        scale=2.0**10,
        steps=5,
        observe={"poison": [3, 5]},
    ),
]


LOADED = [
    job(model, placement, name="loaded", steps=3, observe={"evaluate": True, "replay": True})
    for model, placement in (("gpt", "hpz"), ("tiny", "zero_topo"))
]


STALE = job("gpt", "hpz", name="stale", steps=3, observe={"stale": True})


RACES = [
    job("gpt", "hpz", name=fence, steps=3, observe={"late_copies": fence})
    for fence in ("fenced", "open")
]


@pytest.fixture(scope="module")
def quick(run_ranks) -> dict[str, Any]:
    jobs = [*REFERENCES, *EXACT, *NEAR, *SPOILT, *LOADED, STALE, *RACES]
    return run_ranks(jobs, timeout_s=1_160)


def test_the_references_learn_and_are_clipped_at_every_step(quick: dict[str, Any]) -> None:
    for model in MODELS:
        assert quick[model]["losses"][-1] < quick[model]["losses"][0] - 0.01
        assert max(quick[model]["grad_norms"]) > GRAD_CLIP
    for model in ("gpt", "llama", "odd"):
        assert min(quick[model]["grad_norms"]) > GRAD_CLIP


@cases(EXACT)
def test_a_placement_trains_like_one_process(quick: dict[str, Any], case: Any) -> None:
    trains_exactly(quick, case)


@cases(NEAR)
def test_a_quantized_placement_trains_nearly_like_one_process(
    quick: dict[str, Any], case: Any
) -> None:
    trains_nearly(quick, case)


@cases([*EXACT, *NEAR, *SPOILT])
def test_ranks_that_hold_the_same_hold_the_same_bits(quick: dict[str, Any], case: Any) -> None:
    holds_the_same(quick, case)


@cases([*EXACT, *NEAR])
def test_every_rank_sends_the_predicted_bytes(quick: dict[str, Any], case: Any) -> None:
    sends_what_was_predicted(quick, case)


def test_an_overflow_is_not_hidden_by_quantization(quick: dict[str, Any]) -> None:
    found = quick["gpt / zero_topo / overflow"]
    finite = [math.isfinite(norm) for norm in found["grad_norms"]]
    assert 0 < found["skipped_steps"] == finite.count(False) < len(finite)
    assert finite[-1]
    assert all(math.isfinite(loss) for loss in found["losses"])
    assert found["ranks_agree"]


def test_a_nan_on_one_rank_skips_the_step_on_all(quick: dict[str, Any]) -> None:
    found = quick["odd / zero++ / one NaN"]
    finite = [math.isfinite(norm) for norm in found["grad_norms"]]
    assert finite == [True, True, True, False, True]
    assert found["skipped_steps"] == 1
    assert math.isfinite(found["losses"][4])
    assert found["ranks_agree"]


def test_an_evaluation_between_steps_changes_nothing(quick: dict[str, Any]) -> None:
    """A secondary copy in no_grad: DeepSpeed #4232."""
    assert quick["gpt / hpz"]["losses"][:3] == quick["gpt / hpz / loaded"]["losses"]


@pytest.mark.parametrize("case", ["gpt / hpz / loaded", "tiny / zero_topo / loaded"])
def test_loaded_weights_replace_every_copy_of_the_old_ones(
    quick: dict[str, Any], case: str
) -> None:
    """A stale secondary copy after loading weights: DeepSpeed #7707."""
    assert quick[case]["replayed"] == quick[case]["losses"]


def test_a_secondary_copy_that_outlives_a_step_would_be_seen(quick: dict[str, Any]) -> None:
    stale, expected = quick[STALE["id"]], quick["gpt"]
    assert stale["losses"] != pytest.approx(expected["losses"][:3], rel=1e-3)


def test_training_reads_unwritten_memory_only_without_the_fence(quick: dict[str, Any]) -> None:
    """The race of Dai et al. 2024, with copies as late as the order of streams allows."""
    fenced, unfenced = RACES
    trains_exactly(quick, fenced)
    assert all(math.isnan(loss) for loss in quick[unfenced["id"]]["losses"])
