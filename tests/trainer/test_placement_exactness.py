"""Every placement trains the same model, holds what it says, and sends what was predicted.

All cases run on 8 ranks that pretend to be 2 nodes of 2 cards of 2 dies.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from trainer.config import TrainConfig
from trainer.zero.traffic import step_volume

pytestmark = pytest.mark.timeout(600)  # the ranks of all cases run before the first test

STEPS = 20
FEW_STEPS = 5
"""Of what `make test` runs; the whole sweep has more cases and steps."""
RANKS = 8
GLOBAL_BATCH = 16
GRAD_CLIP = 0.5
PLAIN = {"quantize_weights": False, "quantize_gradients": False}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "num_layers": 2,
        "hidden_size": 32,
        "num_heads": 4,
        "vocab_size": 64,
        "seq_length": 8,
    },
    "llama": {
        "num_layers": 4,
        "hidden_size": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn_hidden_size": 48,
        "vocab_size": 64,
        "seq_length": 8,
        "norm": "rmsnorm",
        "positions": "rotary",
        "activation": "swiglu",
        "linear_bias": False,
        "tied_embeddings": False,
    },
    # Nothing divides by the degrees, and the embeddings are tied.
    "odd": {
        "num_layers": 2,
        "hidden_size": 36,
        "num_heads": 6,
        "num_kv_heads": 3,
        "ffn_hidden_size": 51,
        "vocab_size": 99,
        "seq_length": 7,
    },
    # Every parameter has fewer rows than there are ranks: most ranks hold none of it.
    "tiny": {
        "num_layers": 2,
        "hidden_size": 3,
        "num_heads": 3,
        "ffn_hidden_size": 5,
        "vocab_size": 3,
        "seq_length": 5,
        "tied_embeddings": False,
    },
}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "zero0": {"placement": "zero0"},
    "zero1": {"placement": "zero1"},
    "zero2": {"placement": "zero2"},
    "zero3": {"placement": "zero3"},
    "hpz": {"placement": "hpz"},
    "hpz each micro-batch": {"placement": "hpz", "refresh_secondary": "micro_batch"},
    "mics": {"placement": "mics"},
    "topo": {"placement": "zero_topo", **PLAIN, "quantize_secondary": False},
    "topo s8": {
        "placement": "zero_topo",
        "secondary_shard": 8,
        **PLAIN,
        "quantize_secondary": False,
        "refresh_secondary": "micro_batch",
    },
    "w2 g4 o4 s8": {
        "weight_shard": 2,
        "gradient_shard": 4,
        "optimizer_shard": 4,
        "secondary_shard": 8,
    },
    "w1 g4 o8": {"weight_shard": 1, "gradient_shard": 4, "optimizer_shard": 8},
    "w1 g1 o4": {"weight_shard": 1, "gradient_shard": 1, "optimizer_shard": 4},
    "w2 g2 o2": {"weight_shard": 2, "gradient_shard": 2, "optimizer_shard": 2},
    "w4 s1": {"weight_shard": 4, "secondary_shard": 1},
}
QUANTIZED: dict[str, dict[str, Any]] = {
    "zero++": {"placement": "zero++"},
    "zero_topo": {"placement": "zero_topo"},
    "zero_topo s8": {"placement": "zero_topo", "secondary_shard": 8},
    "zero3 int4": {"placement": "zero3", "quantize_gradients": True},
    "mics int8": {"placement": "mics", "quantize_weights": True, "quantize_gradients": True},
    "w1 g4 o8 q": {
        "weight_shard": 1,
        "gradient_shard": 4,
        "quantize_weights": True,
        "quantize_gradients": True,
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "": {},
    "tp2": {"tp": 2},
    "tp2 sp": {"tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2, "gas": 4},
    "pp4": {"pp": 4, "gas": 4},
    "pp2 vpp2": {"pp": 2, "vpp": 2, "gas": 4},  # these two of the model with four layers
}


def job(model: str, placement: str, layout: str = "", name: str = "", **values: Any) -> dict:
    """A case, named by what it is; degrees that exceed its data-parallel ranks shrink to them."""
    steps = values.pop("steps", STEPS)
    options = {"observe": values.pop("observe", {}), "initial_scale": values.pop("scale", 2.0**16)}
    config = {
        "model": MODELS[model],
        "data": "unused",
        "precision": "fp32",
        "warmup_steps": 0,
        "measured_steps": steps,
        "device": "cpu",
        "optimizer": {"lr": 1e-3, "grad_clip": GRAD_CLIP},
        "ranks_per_node": 4,
        "ranks_per_pair": 2,
        "gas": 2,
        **{**PLACEMENTS, **QUANTIZED}[placement],
        **LAYOUTS[layout],
        **values,
    }
    dp = RANKS // config.get("tp", 1) // config.get("pp", 1)
    for key in ("weight_shard", "secondary_shard", "gradient_shard", "optimizer_shard"):
        if key in config:
            config[key] = min(config[key], dp)
    config["mbs"] = GLOBAL_BATCH // dp // config["gas"]
    if config["mbs"] == 0:
        config.update(mbs=1, gas=GLOBAL_BATCH // dp)
    words = (model, placement, layout, name)
    return {
        "id": " / ".join(filter(None, words)),
        "ranks": RANKS,
        "config": config,
        "options": options,
    }


def reference(model: str) -> dict[str, Any]:
    case = job(model, "zero0")
    options = {"global_batch": GLOBAL_BATCH}
    return {"id": model, "ranks": 0, "config": case["config"], "options": options}


REFERENCES = [reference(model) for model in MODELS]
EXACT = [
    job(*names, steps=FEW_STEPS, **more)
    for *names, more in (
        ("gpt", "hpz", {}),
        ("odd", "hpz each micro-batch", {}),
        ("odd", "mics", {}),
        ("odd", "topo s8", {}),
        ("gpt", "w2 g4 o4 s8", {}),
        ("odd", "w1 g4 o8", {}),
        ("gpt", "w1 g1 o4", {}),
        ("tiny", "topo", {}),
        ("llama", "topo", "tp2 sp", {}),
        ("gpt", "hpz", "tp2", {"recompute": "full"}),
        ("llama", "topo s8", "pp2 vpp2", {}),
        ("odd", "hpz", "pp2", {}),
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
COLLECTIVES = {
    **job("gpt", "zero3", name="collectives"),
    "id": "collectives",
    "options": {"collectives": True},
}
EVERY_EXACT = [
    *(
        job(model, placement, layout, recompute=("none", "selective", "full")[number % 3])
        for model, layouts in (("gpt", ("", "tp2", "pp2")), ("llama", LAYOUTS))
        for layout in layouts
        for number, placement in enumerate(PLACEMENTS)
    ),
    *(job(model, placement) for model in ("odd", "tiny") for placement in PLACEMENTS),
    *(job("odd", placement, "pp2") for placement in PLACEMENTS),
]
EVERY_NEAR = [
    job(model, placement, layout)
    for model, layouts in (("gpt", ("", "tp2", "pp2")), ("llama", LAYOUTS), ("odd", ("",)))
    for layout in layouts
    for placement in QUANTIZED
]
NARROW = [
    job("gpt", placement, name=precision, precision=precision, **more)
    for placement in PLACEMENTS
    for precision, more in (("bf16", {"reduce_precision": "bf16"}), ("fp16", {}))
]


@pytest.fixture(scope="module")
def quick(run_ranks) -> dict[str, Any]:
    jobs = [*REFERENCES, *EXACT, *NEAR, *SPOILT, *LOADED, STALE, *RACES, COLLECTIVES]
    return run_ranks(jobs, timeout_s=560)


@pytest.fixture(scope="module")
def every(run_ranks) -> dict[str, Any]:
    return run_ranks([*REFERENCES, *EVERY_EXACT, *EVERY_NEAR, *NARROW], timeout_s=3000)


def cases(jobs: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", jobs, ids=lambda case: case["id"])


def found_and_expected(results: dict[str, Any], case: dict[str, Any]) -> Any:
    """Losses and gradient norms of a case and of one process, for as many steps."""
    found, expected = results[case["id"]], results[case["id"].split(" / ")[0]]
    steps = case["config"]["measured_steps"]
    assert len(found["losses"]) == steps
    assert found["skipped_steps"] == 0
    assert found["ranks_agree"]
    return found, {name: expected[name][:steps] for name in ("losses", "grad_norms")}


def trains_exactly(results: dict[str, Any], case: dict[str, Any]) -> None:
    found, expected = found_and_expected(results, case)
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert found["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-5)


def trains_nearly(results: dict[str, Any], case: dict[str, Any]) -> None:
    """Losses within 2 %: what INT4 gradients do to Adam's first steps in so small a model.

    The first gradients are of nearly equal weights, and rounding errors are independent: their
    norm is right within 5 %. FSDP2's own division of fp16 gradients would halve it.
    """
    found, expected = found_and_expected(results, case)
    assert found["losses"] == pytest.approx(expected["losses"], rel=0.02)
    assert found["losses"] != pytest.approx(expected["losses"], rel=1e-6)
    assert found["grad_norms"][0] == pytest.approx(expected["grad_norms"][0], rel=0.05)


def holds_the_same(results: dict[str, Any], case: dict[str, Any]) -> None:
    placement = TrainConfig.parse(case["config"]).place(RANKS)
    copies = {
        "stored": placement.dp // (placement.storage_degree if placement.fully_sharded else 1),
        "master": placement.dp // placement.optimizer.degree,
    }
    if placement.secondary is not None:
        copies["secondary"] = placement.dp // placement.secondary.degree
    found = results[case["id"]]["holders"]
    assert found["counts"] == {state: [number] for state, number in copies.items()}
    assert found["differ"] == []


def sends_what_was_predicted(results: dict[str, Any], case: dict[str, Any]) -> None:
    config = TrainConfig.parse(case["config"])
    for rank, counted in enumerate(results[case["id"]]["traffic"]):
        assert counted == step_volume(config, RANKS, rank), f"rank {rank}"


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


def test_quantized_collectives_err_by_no_more_than_their_formats(quick: dict[str, Any]) -> None:
    """In every dtype, bfloat16 too (DeepSpeed #8215), and where sizes do not divide (#5056)."""
    found = quick["collectives"]
    errors = {name: error for name, error in found.items() if isinstance(error, float)}
    assert len(errors) == 3 * 4 + 1
    assert all(0 < error < 1 for error in errors.values()), errors


def test_a_reduced_row_lands_on_its_rank_over_any_hops(quick: dict[str, Any]) -> None:
    assert quick["collectives"]["misplaced"] < 1e-4


def test_all_ranks_decode_the_same_bits(quick: dict[str, Any]) -> None:
    assert quick["collectives"]["differ"] == 0


def test_no_size_or_dtype_falls_back_to_full_width(quick: dict[str, Any]) -> None:
    sent = quick["collectives"]["bytes"]
    assert len(sent) == 3 * 6 * 2 * 3
    assert all(found == 2 * expected for found, expected in sent)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@cases(EVERY_EXACT)
def test_every_placement_trains_like_one_process(every: dict[str, Any], case: Any) -> None:
    trains_exactly(every, case)
    holds_the_same(every, case)
    sends_what_was_predicted(every, case)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@cases(EVERY_NEAR)
def test_every_quantized_placement_trains_nearly_alike(every: dict[str, Any], case: Any) -> None:
    trains_nearly(every, case)
    holds_the_same(every, case)
    sends_what_was_predicted(every, case)


@pytest.mark.heavy
@pytest.mark.timeout(3000)
@cases(NARROW)
def test_sixteen_bits_follow_float32_in_every_placement(every: dict[str, Any], case: Any) -> None:
    """Within the rounding of the format, as in ``test_exactness``."""
    precision = case["config"]["precision"]
    exact = {"bf16": 2**-8, "fp16": 2**-10}[precision]
    found = every[case["id"]]
    assert found["losses"] == pytest.approx(every["gpt"]["losses"], rel=exact)
    assert found["losses"] != pytest.approx(every["gpt"]["losses"], rel=1e-6)
    assert found["skipped_steps"] == 0
    holds_the_same(every, case)
    sends_what_was_predicted(every, case)
