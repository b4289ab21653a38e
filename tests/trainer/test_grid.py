"""Training over a grid of tensor-parallel ranks equals a plain loop in one process."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from support.expected_traffic import expected_traffic
from support.placement_cases import GLOBAL_BATCH, RANKS, config_of
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

STEPS, FEW_STEPS = 10, 3
SHAPE = {"num_layers": 4, "hidden_size": 64, "num_heads": 8, "vocab_size": 64, "seq_length": 16}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": SHAPE,
    "llama": {
        **SHAPE,
        "num_heads": 16,
        "num_kv_heads": 8,
        "ffn_hidden_size": 128,
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "swiglu",
        "linear_bias": False,
        "tied_embeddings": False,
    },
}
EXACT = 1e-5
SWITCHES = ("overlap_all_reduce", "overlap_reduce_scatter", "overlap_all_gather")
OFF = dict.fromkeys(SWITCHES, False)


def case(model: str, steps: int = FEW_STEPS, name: str = "", **values: Any) -> dict[str, Any]:
    """On 8 ranks, whatever the axes leave being replicas."""
    gradients = values.pop("gradients", True)
    degrees = [values.get(axis, 1) for axis in ("gx", "gy", "gz", "pp", "tp")]
    dp = RANKS
    for degree in degrees:
        dp //= degree
    gas = values.setdefault("gas", 2 if dp <= 4 // values.get("gz", 1) else 1)
    config = config_of(MODELS[model], steps, mbs=GLOBAL_BATCH // dp // gas, **values)
    said = " ".join(f"{k}={v}" for k, v in values.items() if k not in SWITCHES)
    options: dict[str, Any] = {"global_batch": GLOBAL_BATCH, "observe": {"gradients": gradients}}
    return {"id": f"{model} {said}{name}", "ranks": RANKS, "config": config, "options": options}


def reference(model: str) -> dict[str, Any]:
    return {**case(model, STEPS), "id": model, "ranks": 0}


REFERENCES = [reference(model) for model in MODELS]
QUICK = [
    case("gpt", gx=2, gy=2, gz=2),
    case("llama", gy=2, gz=2, zero_stage=1, recompute="full"),
    case("gpt", gx=2, gz=2, pp=2, gas=2),
]
PLAIN = case("gpt", name=" off", gradients=False, gx=2, gy=2, gz=2, **OFF)
QUANTIZED = case("gpt", gradients=False, gz=4, gx=2, quantize_weights=True)

GRIDS = [g for g in itertools.product((1, 2, 4, 8), repeat=4) if g[0] * g[1] * g[2] * g[3] == 8]
EVERY = [
    case(model, STEPS, gx=gx, gy=gy, gz=gz, zero_stage=(gx + gy) % 2)
    for model in MODELS
    for gx, gy, gz, _ in GRIDS
]
PIPELINED = [
    case(model, STEPS, gx=gx, gy=gy, gz=gz, pp=2, gas=2, recompute=recompute)
    for model, recompute in (("gpt", "full"), ("llama", "none"))
    for gx, gy, gz in itertools.product((1, 2, 4), repeat=3)
    if 4 % (gx * gy * gz) == 0 and gx * gy * gz > 1
]
SWITCHED = [
    case(model, name=f" {switch}", gx=gx, gy=gy, gz=gz, recompute=recompute, **{switch: False})
    for (model, recompute), (gx, gy, gz), switch in itertools.product(
        (("gpt", "full"), ("llama", "none")), ((2, 2, 2), (1, 1, 4), (1, 2, 2)), SWITCHES
    )
]
UNSWITCHED = {
    (model, gx, gy, gz): case(model, name=" on", gx=gx, gy=gy, gz=gz, recompute=recompute)
    for model, recompute in (("gpt", "full"), ("llama", "none"))
    for gx, gy, gz in ((2, 2, 2), (1, 1, 4), (1, 2, 2))
}


@pytest.fixture(scope="module")
def results(run_ranks: Any) -> dict[str, Any]:
    return run_ranks([*REFERENCES, *QUICK, PLAIN, QUANTIZED])


@pytest.fixture(scope="module")
def sweep(run_ranks: Any) -> dict[str, Any]:
    jobs = [*REFERENCES, *EVERY, *PIPELINED, *SWITCHED, *UNSWITCHED.values()]
    return run_ranks(jobs, timeout_s=3000)


def trains_exactly(results: dict[str, Any], case: dict[str, Any]) -> None:
    """Losses, the clipped norms, every parameter's first gradient, and bytes on the way."""
    found, expected = results[case["id"]], results[case["id"].split()[0]]
    steps = case["config"]["measured_steps"]
    assert found["losses"] == pytest.approx(expected["losses"][:steps], rel=EXACT)
    assert found["grad_norms"] == pytest.approx(expected["grad_norms"][:steps], rel=10 * EXACT)
    assert found["ranks_agree"] and found["holders"]["differ"] == []
    assert max(found["gradients"].values()) < EXACT
    config = TrainConfig.parse(case["config"])
    for rank, counted in enumerate(found["traffic"]):
        assert counted == expected_traffic(config, RANKS, rank), f"rank {rank}"


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case["id"])
def test_a_grid_trains_like_one_process(results: dict[str, Any], case: dict[str, Any]) -> None:
    trains_exactly(results, case)


def test_gradients_of_biases_are_among_those_compared(results: dict[str, Any]) -> None:
    compared = results[QUICK[0]["id"]]["gradients"]
    assert len([name for name in compared if name.endswith(".bias")]) == 6 * 4 + 1
    assert len(compared) == 2 * 6 * 4 + 2 + 2


def test_without_overlap_losses_are_the_same_to_the_bit(results: dict[str, Any]) -> None:
    assert results[PLAIN["id"]]["losses"] == results[QUICK[0]["id"]]["losses"]
    assert results[PLAIN["id"]]["traffic"] == results[QUICK[0]["id"]]["traffic"]


def test_weights_gathered_as_int8_train_nearly_like_one_process(results: dict[str, Any]) -> None:
    found, expected = results[QUANTIZED["id"]]["losses"], results["gpt"]["losses"][:FEW_STEPS]
    assert found == pytest.approx(expected, rel=0.02)
    assert found != pytest.approx(expected, rel=1e-6)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", [*EVERY, *PIPELINED], ids=lambda case: case["id"])
def test_every_grid_trains_like_one_process(sweep: dict[str, Any], case: dict[str, Any]) -> None:
    trains_exactly(sweep, case)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", SWITCHED, ids=lambda case: case["id"])
def test_each_switch_leaves_losses_the_same_to_the_bit(
    sweep: dict[str, Any], case: dict[str, Any]
) -> None:
    degrees = [case["config"][axis] for axis in ("gx", "gy", "gz")]
    other = UNSWITCHED[(case["id"].split()[0], *degrees)]
    assert sweep[case["id"]]["losses"] == sweep[other["id"]]["losses"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gx": 3}, "gx 3 * gy 1 * gz 1 * pp 1 does not divide"),
        ({"gx": 2, "tp": 2}, "gx is its tensor parallelism; set tp: 1"),
        ({"gz": 2, "mbs": 3}, "mbs 3 by gz 2"),
        ({"gz": 2, "zero_stage": 3, "mbs": 2}, "set zero_stage to 0 or 1"),
        ({"gx": 8, "model": {**SHAPE, "num_kv_heads": 4}}, "num_kv_heads 4 by gx 8"),
        ({"quantize_weights": True, "gx": 2}, "quantize_weights needs split gradients"),
        ({"gx": 2, "compile": True, "overlap_all_reduce": False}, "whose products overlap it"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_with_its_values(
    values: dict[str, Any], words: str
) -> None:
    config = TrainConfig.parse({"model": SHAPE, "data": "unused", **values})
    with pytest.raises(ConfigError, match=words.replace("*", r"\*")):
        config.check(RANKS)
