"""Mixtures of experts train alike in every layout, and send what is priced."""

from __future__ import annotations

from typing import Any

import pytest

from support import expert_cases as cases
from support.expected_traffic import expected_traffic
from support.long_sweep import LongSweep
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

EXACT = 1e-13


@pytest.fixture(scope="module")
def results(run_ranks: Any) -> dict[str, Any]:
    jobs = [
        *cases.REFERENCES,
        *cases.QUICK,
        cases.AGAIN,
        cases.OFFLOADED,
        *cases.FUSED,
        *cases.BYTES,
        cases.UNEVEN,
    ]
    return run_ranks(jobs)


@pytest.fixture(scope="module")
def every(run_ranks: Any) -> dict[str, Any]:
    references = [*cases.REFERENCES, *cases.MORE_REFERENCES]
    return LongSweep(run_ranks, references, cases.EVERY, cases.EVERY_LATENT)


def trains_exactly(results: dict[str, Any], case: dict[str, Any]) -> None:
    """Losses, norms of all gradients, and the biases of routers, with those of one process."""
    found = results[case["id"]]
    expected = results[f"{case['id'].split()[0]} reference"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=EXACT)
    assert found["grad_norms"] == pytest.approx(expected["grad_norms"], rel=EXACT)
    assert found["ranks_agree"] and found["skipped_steps"] == 0
    of_stages = [layer for own in found["biases"] for layer in own]
    assert all(layer in of_stages for layer in expected["biases"])
    assert all(layer in expected["biases"] for layer in of_stages)


@pytest.mark.parametrize("case", cases.QUICK, ids=lambda case: case["id"])
def test_a_mixture_trains_like_one_process(results: dict[str, Any], case: dict[str, Any]) -> None:
    trains_exactly(results, case)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", [*cases.EVERY, *cases.EVERY_LATENT], ids=lambda case: case["id"])
def test_every_layout_of_a_mixture_trains_like_one_process(
    every: dict[str, Any], case: dict[str, Any]
) -> None:
    trains_exactly(every, case)


@pytest.mark.parametrize("model", ["softmax", "sigmoid"])
def test_the_reference_learns_and_its_routers_biases_move(
    results: dict[str, Any], model: str
) -> None:
    reference = results[f"{model} reference"]
    assert reference["losses"][-1] < reference["losses"][0] - 0.02
    moved = [value for biases in reference["biases"] for value in biases if value]
    assert bool(moved) == (model == "sigmoid")


@pytest.mark.parametrize(
    "pair",
    [
        (cases.QUICK[1], cases.AGAIN),
        (cases.QUICK[7], cases.OFFLOADED),
        *zip((cases.QUICK[5], cases.QUICK[9]), cases.FUSED, strict=True),
    ],
    ids=["as it was", "offloaded", "fused", "fused, latent"],
)
def test_a_second_run_has_the_same_bits(results: dict[str, Any], pair: Any) -> None:
    first, second = (results[case["id"]] for case in pair)
    for name in ("losses", "grad_norms", "biases"):
        assert first[name] == second[name]


@pytest.mark.parametrize("case", cases.BYTES, ids=lambda case: case["id"])
def test_every_rank_sends_the_bytes_that_the_cost_model_prices(
    results: dict[str, Any], case: dict[str, Any]
) -> None:
    config = TrainConfig.parse(case["config"])
    for rank, counted in enumerate(results[case["id"]]["traffic"]):
        assert counted == expected_traffic(config, case["ranks"], rank), f"rank {rank}"
        assert counted["bytes"]["experts"]


def test_unequal_experts_send_nearly_what_is_priced_in_the_mean_over_ranks(
    results: dict[str, Any],
) -> None:
    case = cases.UNEVEN
    config = TrainConfig.parse(case["config"])
    sent = [sum(counted["bytes"]["experts"].values()) for counted in results[case["id"]]["traffic"]]
    priced = sum(expected_traffic(config, case["ranks"])["bytes"]["experts"].values())
    assert len({*sent}) > 1
    assert sum(sent) / len(sent) == pytest.approx(priced, rel=0.1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gz": 2, "mbs": 2}, "it splits dense layers only; set all to 1"),
        ({"tune_kernels": True}, "times dense products; set it to false"),
        (
            {"pp": 2, "vpp": 2, "gas": 4, "pipeline_schedule": "ZBVZeroBubble"},
            "experts' weight gradients cannot wait; set 1F1B or LoopedBFS",
        ),
        ({"tp": 2, "ep": 2}, "set sequence_parallel: true, and ep to a multiple of tp"),
        ({"tp": 2, "sequence_parallel": True}, "tp 2, ep 1: an expert is not split"),
        (
            {"model": {**cases.SHAPE, "shared_ffn_hidden_size": 3}, "tp": 2, "ep": 2},
            "not divisible: shared_ffn_hidden_size 3 by tp 2",
        ),
        ({"ep": 3}, "ep 3 does not divide num_experts 8"),
        ({"ep": 8, "pp": 2}, r"ep 8 does not divide tp 1 \* dp 4"),
        ({"ep": 4, "weight_shard": 3}, "of each and ep / tp one must divide the other"),
        ({"model": {**cases.SHAPE, "linear_bias": True}}, "experts have no biases"),
        ({"model": cases.MODELS["latent-dense"], "gx": 2}, "does not split latent attention; set"),
        (
            {"model": cases.MODELS["latent-dense"], "tp": 2, "compile": True},
            "what ranks send between its products is in no graph; set compile: false",
        ),
        (
            {"model": cases.MODELS["gated"], "tp": 2},
            "one norm of all heads is not split; set tp: 1",
        ),
        (
            {"model": cases.MODELS["latent-dense"], "engine": "deepspeed"},
            "no latent attention here; set engine: meshtune",
        ),
    ],
)
def test_what_a_mixture_cannot_be_trained_with_is_refused_with_a_remedy(
    values: dict[str, Any], words: str
) -> None:
    ranks = 12 if "weight_shard" in values else 8
    config = TrainConfig.parse({"model": cases.SHAPE, "data": "unused", **values})
    with pytest.raises(ConfigError, match=words):
        config.check(ranks)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"moe_aux_loss_coeff": 0.1, "goldfish": {}}, "tokens that are left out of the loss"),
        ({"moe_aux_loss_coeff": 0.1, "model": {**cases.SHAPE, "num_experts": 0}}, "num_experts"),
        ({"model": {**cases.SHAPE, "experts_per_token": 9}}, "is more than num_experts 8"),
        ({"model": {**cases.SHAPE, "expert_ffn_hidden_size": None}}, "must be, too"),
        (
            {"last_save_in_hf": True, "save": "x"}
            | {"model": {**cases.SHAPE, "router_score": "sigmoid"}},
            "num_experts 8, router_score sigmoid: Hugging Face weights",
        ),
    ],
)
def test_settings_of_experts_that_contradict_each_other_are_refused(
    values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainConfig.parse({"model": cases.SHAPE, "data": "unused", **values})
