"""How split parameters lie: nothing is lost or held twice, and shapes are known beforehand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from support.expected_parameters import Parameter, Ranks, in_order, stage_parameters
from trainer.model.parameters import slots
from trainer.model.slices import Cut
from trainer.model.transformer import Stage
from trainer.parallel.tensor import split, split_over_tp
from trainer.plan.formats import BLOCK, Format
from trainer.plan.model import ModelConfig
from trainer.plan.placement import Placement
from trainer.plan.shards import ROW, UnitLayout, fill, padded
from trainer.plan.sizes import stage_weights

SMALL = {"num_layers": 4, "hidden_size": 24, "num_heads": 4, "vocab_size": 22, "seq_length": 6}
MODELS = {
    "gpt": ModelConfig(**SMALL),
    "llama": ModelConfig(
        **SMALL,
        num_kv_heads=2,
        ffn_hidden_size=10,
        norm="rmsnorm",
        positions="rotary",
        activation="swiglu",
        linear_bias=False,
        tied_embeddings=False,
    ),
    "mixed": ModelConfig(**SMALL, num_kv_heads=2, activation="swiglu", tied_embeddings=False),
}
SPLIT_DIMS: dict[str, dict[str, int]] = {
    # By Shoeybi et al. 2019, section 3: which dimension of what lies over tensor-parallel ranks.
    "embedding": {"weight": 0},
    "head": {"weight": 0},
    "qkv": {"weight": 0, "bias": 0},
    "up": {"weight": 0, "bias": 0},
    "out": {"weight": 1},
    "down": {"weight": 1},
}


def built(model: ModelConfig, index: int, num_stages: int, tp: int) -> Stage:
    with torch.device("meta"):
        stage = Stage(model, index, num_stages)
        for name, module in stage.named_modules():
            if tp > 1 and (dims := SPLIT_DIMS.get(name.split(".")[-1])):
                split(module, split_over_tp(dims, Cut(0, tp)))
    return stage


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("index", "num_stages"), [(0, 1), (0, 2), (1, 2), (1, 4), (3, 4)])
@pytest.mark.parametrize("model", MODELS)
def test_shapes_and_kinds_are_those_of_the_built_stage(
    model: str, index: int, num_stages: int, tp: int
) -> None:
    stage = built(MODELS[model], index, num_stages, tp)
    names = {id(parameter): name for name, parameter in stage.named_parameters()}
    expected = [
        Parameter(names[id(slot.parameter)], tuple(slot.parameter.shape), slot.traits)
        for slot in slots(stage)
    ]
    units = stage_parameters(MODELS[model], index, num_stages, Ranks(tp))
    assert list(in_order(units)) == expected


@pytest.mark.parametrize("model", MODELS)
def test_stages_hold_the_models_parameters_between_them(model: str) -> None:
    config = MODELS[model]
    whole = sum(p.numel for p in in_order(stage_parameters(config)))
    assert whole == config.num_parameters
    parts = [p for i in range(4) for p in in_order(stage_parameters(config, i, 4))]
    assert sum(p.numel for p in parts if not p.traits.copy) == whole


@pytest.mark.parametrize(
    ("index", "num_stages", "tp"), [(0, 1, 1), (0, 1, 2), (1, 2, 1), (3, 4, 2)]
)
@pytest.mark.parametrize("model", MODELS)
def test_a_stages_matrices_have_the_elements_that_the_cost_model_counts(
    model: str, index: int, num_stages: int, tp: int
) -> None:
    """All but norms, biases and learned positions."""
    config = MODELS[model]
    parameters = [*in_order(stage_parameters(config, index, num_stages, Ranks(tp)))]
    tables = [p for p in parameters if p.name in ("embedding.weight", "head.weight")]
    layers = [p for p in parameters if p.name.startswith("blocks.") and len(p.shape) > 1]
    counted = stage_weights(config, config.num_layers // num_stages, len(tables), tp)
    assert sum(p.numel for p in (*layers, *tables)) == counted


@st.composite
def layouts(draw: Any) -> UnitLayout:
    """Degrees in a chain, and parameters that may have fewer rows than there are ranks."""
    weights = draw(st.sampled_from([1, 2, 4]))
    gradients = weights * draw(st.sampled_from([2, 4] if weights == 1 else [1, 2, 3]))
    optimizer = gradients * draw(st.sampled_from([1, 2, 3]))
    dp = optimizer * draw(st.sampled_from([1, 2]))
    degree = draw(st.sampled_from([d for d in range(1, dp + 1) if dp % d == 0]))
    placement = Placement(
        dp=dp,
        weight_shard=weights,
        secondary_shard=degree if weights > 1 else 0,
        gradient_shard=gradients,
        optimizer_shard=optimizer,
        gather_format=draw(st.sampled_from([Format.FP32, Format.INT8])),
        reduce_format=Format.INT4,
    )
    size = st.integers(1, 11)
    shape = st.one_of(st.tuples(size), st.tuples(size, size))
    shapes = draw(st.lists(shape, min_size=1, max_size=5))
    return UnitLayout(placement, tuple(shapes), draw(st.sampled_from([1, 2, 4])))


@settings(max_examples=200)
@given(layouts())
def test_every_element_is_updated_once_in_each_group_of_optimizer_ranks(layout: UnitLayout) -> None:
    degree = layout.placement.optimizer_shard
    for group in range(layout.placement.dp // degree):
        seen: Counter[tuple[int, int]] = Counter()
        for replica in range(group * degree, (group + 1) * degree):
            row = replica % layout.ranks
            for number, begin, offset, length in layout.updated(replica):
                assert 0 <= offset <= offset + length <= layout.slice
                first = row * layout.chunks[number] + begin
                seen.update((number, first + i) for i in range(length))
        assert set(seen.values()) == {1}
        assert set(seen) == {
            (number, element)
            for number, shape in enumerate(layout.shapes)
            for element in range(math.prod(shape))
        }


@settings(max_examples=200)
@given(layouts())
def test_slices_tile_the_row_and_hops_reach_all_that_accumulate(layout: UnitLayout) -> None:
    placement = layout.placement
    own_row = range(0, placement.optimizer_shard, layout.ranks)
    begins = sorted(layout.begin(replica) for replica in own_row)
    assert begins == list(range(0, layout.row, layout.slice))
    cuts = layout.pieces * layout.slices
    block = BLOCK if cuts > 1 and placement.gather_format.quantized else 1
    assert 0 <= layout.row - layout.used < cuts * block
    assert layout.slice % block == 0
    assert math.prod(layout.hops) == placement.gradient_shard
    assert layout.slices * layout.copies * placement.gradient_shard == placement.dp


@settings(max_examples=200)
@given(layouts())
def test_shares_of_the_secondary_copy_cover_the_whole_with_little_filling(
    layout: UnitLayout,
) -> None:
    if layout.placement.secondary_shard == 0:
        return
    degree = layout.placement.secondary_shard
    rows, length = layout.secondary
    total = layout.ranks * layout.used
    assert total <= degree * rows * length < total + degree


def test_buckets_hold_one_kind_and_no_more_than_they_may() -> None:
    parameters = list(in_order(stage_parameters(MODELS["mixed"], 0, 1, Ranks(2))))
    buckets = fill(reversed(parameters), limit=300)
    assert all(len({p.traits for p in bucket}) == 1 for bucket in buckets)
    assert all(len(b) == 1 or sum(p.numel for p in b) <= 300 for b in buckets)
    held = [p.name for p in itertools.chain.from_iterable(buckets)]
    assert sorted(held) == sorted(p.name for p in parameters)
    for bucket, shares in itertools.product(buckets, (1, 3, 8)):
        used = sum(p.numel for p in bucket)
        assert padded(bucket, shares) % (shares * ROW) == 0
        assert used <= padded(bucket, shares) < used + shares * ROW
