"""The placement record: what it accepts, what presets stand for, and what a rank then holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from support.unit_exchanges import bytes_per_rank
from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.plan.limits import ConfigError
from trainer.plan.model import ModelConfig
from trainer.plan.placement import Placement, Topology, shared_within
from trainer.plan.presets import PRESETS, Preset, place
from trainer.plan.rules.requirement import QUANTIZED
from trainer.plan.states import DEGREES

FRONTIER = Topology(ranks_per_node=8, ranks_per_pair=2)
DGX = Topology(ranks_per_node=8)
GIB = 2**30


def placed(
    preset: Preset = "zero3",
    dp: int = 16,
    tp: int = 1,
    topology: Topology = FRONTIER,
    **wishes: Any,
) -> Placement:
    return place(preset, wishes, dp, tp, topology, Format.BF16)


def degrees(placement: Placement) -> tuple[int, int, int, int]:
    """Weights, secondary copy (0: none), gradients, optimizer states."""
    return (
        placement.weight_shard,
        placement.secondary_shard,
        placement.gradient_shard,
        placement.optimizer_shard,
    )


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"gradient_shard": 8}, "weight_shard 16 does not divide gradient_shard 8; .*or change"),
        ({"optimizer_shard": 8}, "gradient_shard 16 does not divide optimizer_shard 8"),
        ({"weight_shard": 32}, "weight_shard 32 does not divide dp 16; make weight_shard"),
        ({"weight_shard": 3}, "weight_shard 3 does not divide dp 16"),
        ({"weight_shard": 2, "gradient_shard": 6}, "gradient_shard 6 does not divide dp 16"),
        (
            {"weight_shard": 2, "gradient_shard": 6, "optimizer_shard": 6},
            "gradient_shard 6 does not divide dp 16",
        ),
        ({"secondary_shard": 3}, "secondary_shard 3 does not divide dp 16"),
        ({"secondary_shard": 32}, "secondary_shard 32 does not divide dp 16"),
        ({"secondary_shard": -1}, "secondary_shard -1 is below 0"),
        ({"weight_shard": 1, "secondary_shard": 2}, "needs split weights, but weight_shard is 1"),
        ({"quantize_secondary": True}, "no secondary copy: set secondary_shard"),
        ({"weight_shard": 0}, "weight_shard 0 does not divide"),
        ({"optimizer_shard": 0}, "optimizer_shard 0 does not divide dp 16"),
    ],
)
def test_a_contradiction_names_its_rule_and_values(wishes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        placed(**wishes)


def test_a_pair_that_does_not_divide_the_node_is_refused() -> None:
    with pytest.raises(ConfigError, match="ranks_per_pair 3 does not divide ranks_per_node 8"):
        Topology(8, 3)
    with pytest.raises(ConfigError, match="at least one rank"):
        Topology(0)


@pytest.mark.parametrize(
    ("preset", "topology", "dp", "tp", "expected"),
    [
        ("zero0", FRONTIER, 16, 1, (1, 0, 1, 1)),
        ("zero1", FRONTIER, 16, 1, (1, 0, 1, 16)),
        ("zero2", FRONTIER, 16, 1, (1, 0, 16, 16)),
        ("zero3", FRONTIER, 16, 1, (16, 0, 16, 16)),
        ("hpz", FRONTIER, 16, 1, (16, 8, 16, 16)),
        ("mics", FRONTIER, 16, 1, (8, 0, 8, 8)),
        ("zero++", FRONTIER, 16, 1, (16, 8, 16, 16)),
        ("zero_topo", FRONTIER, 16, 1, (2, 2, 8, 16)),
        ("zero_topo", DGX, 16, 1, (8, 8, 8, 16)),  # a card is one device
        ("mics", DGX, 16, 1, (8, 0, 8, 8)),
        # tp 2 fills the pair, and leaves a node four replicas
        ("zero_topo", FRONTIER, 16, 2, (4, 4, 4, 16)),
        ("hpz", FRONTIER, 16, 2, (16, 4, 16, 16)),
        # tp 4 is wider than a pair
        ("zero_topo", FRONTIER, 16, 4, (2, 2, 2, 16)),
        # tp fills the node: nothing is near, so all that stays is ZeRO-1, or a whole copy
        ("zero_topo", FRONTIER, 16, 8, (1, 0, 1, 16)),
        ("mics", FRONTIER, 16, 8, (1, 0, 1, 1)),
        ("hpz", FRONTIER, 16, 8, (16, 1, 16, 16)),
        # fewer replicas than a node has ranks (pp takes the others)
        ("zero_topo", FRONTIER, 4, 1, (2, 2, 4, 4)),
        ("hpz", FRONTIER, 4, 1, (4, 4, 4, 4)),
        ("mics", DGX, 4, 1, (4, 0, 4, 4)),
        # replicas that a node's ranks do not divide: the widest block that stays in a node
        ("mics", DGX, 12, 1, (4, 0, 4, 4)),
        ("zero_topo", FRONTIER, 3, 1, (1, 0, 1, 3)),
        # one replica has nothing to split
        *((preset, FRONTIER, 1, 1, (1, 0, 1, 1)) for preset in PRESETS),
    ],
)
def test_a_preset_follows_the_machine(
    preset: Preset, topology: Topology, dp: int, tp: int, expected: tuple[int, int, int, int]
) -> None:
    assert degrees(placed(preset, dp, tp, topology)) == expected


@pytest.mark.parametrize(
    ("preset", "gather", "reduce", "secondary"),
    [
        ("zero3", "bf16", "fp32", None),
        ("hpz", "bf16", "fp32", "bf16"),
        ("mics", "bf16", "fp32", None),
        ("zero++", "int8", "int4", "bf16"),
        ("zero_topo", "int8", "int4", "int8"),
    ],
)
def test_a_preset_has_its_number_formats(
    preset: Preset, gather: str, reduce: str, secondary: str | None
) -> None:
    placement = placed(preset)
    assert (placement.gather_format, placement.reduce_format) == (gather, reduce)
    assert (placement.secondary_format if placement.secondary_shard else None) == secondary


@pytest.mark.parametrize(
    ("preset", "wishes", "expected"),
    [
        ("zero0", {"weight_shard": 4}, (4, 0, 4, 4)),  # the outer ones follow
        ("zero1", {"gradient_shard": 4}, (1, 0, 4, 16)),
        ("zero_topo", {"weight_shard": 8}, (8, 2, 8, 16)),
        ("zero_topo", {"weight_shard": 16}, (16, 2, 16, 16)),
        ("zero_topo", {"secondary_shard": 8}, (2, 8, 8, 16)),  # Table V: Sec-Degree 8
        ("zero_topo", {"secondary_shard": 0}, (2, 0, 8, 16)),
        ("hpz", {"weight_shard": 1, "gradient_shard": 2}, (1, 0, 2, 16)),
        ("zero3", {"secondary_shard": 4}, (16, 4, 16, 16)),
    ],
)
def test_a_wish_changes_the_preset(
    preset: Preset, wishes: dict[str, Any], expected: tuple[int, int, int, int]
) -> None:
    assert degrees(placed(preset, **wishes)) == expected


def test_a_quantization_can_be_switched_off() -> None:
    placement = placed("zero_topo", quantize_gradients=False, quantize_secondary=False)
    assert (placement.gather_format, placement.reduce_format) == ("int8", "fp32")
    assert (placement.secondary_shard, placement.secondary_format) == (2, Format.BF16)


_degree = st.none() | st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16])
_flag = st.none() | st.booleans()


@settings(max_examples=300)
@given(
    preset=st.sampled_from(PRESETS),
    wishes=st.fixed_dictionaries(
        {**dict.fromkeys(DEGREES, _degree), **dict.fromkeys(QUANTIZED, _flag)}
    ),
    dp=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 24]),
    tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
    topology=st.sampled_from([FRONTIER, DGX, Topology(4, 2), Topology(6, 3), Topology(1)]),
    precision=st.sampled_from([Format.FP32, Format.BF16, Format.FP16]),
)
def test_what_is_placed_keeps_the_dependency_rule(
    preset: Preset, wishes: dict[str, Any], dp: int, tp: int, topology: Topology, precision: Format
) -> None:
    try:
        placement = place(preset, wishes, dp, tp, topology, precision)
    except ConfigError as error:
        assert set(wishes.values()) != {None}, f"a preset by itself is always possible: {error}"
        return
    weights, secondary, gradients, optimizer = degrees(placement)
    assert dp >= optimizer >= gradients >= weights >= 1
    assert dp % optimizer == optimizer % gradients == gradients % weights == 0
    assert secondary == 0 or (dp % secondary == 0 and weights > 1)
    asked = [wishes[f"{state}_shard"] for state in ("weight", "gradient", "optimizer")]
    for wish, got in zip(asked, (weights, gradients, optimizer), strict=True):
        assert wish in (None, got)
    assert all(bytes_ >= 0 for bytes_ in bytes_per_rank(placement, 1000).values())


def test_consecutive_replicas_of_a_block_share_the_node() -> None:
    for dp, tp in [(16, 1), (8, 2), (4, 4), (12, 1), (6, 2)]:
        pair = int(shared_within(FRONTIER.ranks_per_pair, dp, tp))
        for size in (pair, FRONTIER.replicas_per_node(dp, tp)):
            first = [[r * tp for r in range(i, i + size)] for i in range(0, dp, size)]
            assert {FRONTIER.level(ranks) for ranks in first} <= {"pair", "node"}


@pytest.mark.parametrize(
    ("ranks", "level"),
    [([0, 1], "pair"), ([5], "pair"), ([1, 2], "node"), ([0, 7], "node"), ([7, 8], "inter_node")],
)
def test_a_group_talks_over_its_widest_link(ranks: list[int], level: str) -> None:
    assert FRONTIER.level(ranks) == level


@pytest.mark.parametrize(
    ("precision", "preset", "bytes_per_parameter"),
    [
        (Format.BF16, "zero0", 18),
        (Format.BF16, "zero1", 6 + 12 / 16),
        (Format.BF16, "zero2", 2 + 16 / 16),
        (Format.BF16, "zero3", 16 / 16),
        (Format.FP32, "zero0", 16),
        (Format.FP32, "zero1", 8 + 8 / 16),
        (Format.FP32, "zero2", 4 + 12 / 16),
        (Format.FP32, "zero3", 16 / 16),
        (Format.BF16, "hpz", 16 / 16 + 2 / 8),
        (Format.BF16, "mics", 16 / 8),
        # weights over 2, an INT8 copy over 2, float32 gradients over 8, optimizer over 16
        (Format.BF16, "zero_topo", 2 / 2 + 1 / 2 + 4 / 8 + 12 / 16),
    ],
)
def test_the_trainers_own_states_take_what_its_documentation_says(
    precision: Format, preset: Preset, bytes_per_parameter: float
) -> None:
    """As in docs/how-it-works/trainer.md: weights that are the master weights are counted once."""
    placement = place(preset, {}, 16, 1, FRONTIER, precision)
    assert sum(bytes_per_rank(placement, 1000, precision=precision).values()) == pytest.approx(
        1000 * bytes_per_parameter
    )


def test_a_split_between_whole_weights_and_optimizer_states_costs_its_copy() -> None:
    """Gradients over the node, states over all: a 16-bit split to gather whole weights from."""
    placement = placed("zero1", gradient_shard=8)
    assert bytes_per_rank(placement, 1600)["weights"] == 2 * 1600 + 2 * 200


TINY = ModelConfig(num_layers=2, hidden_size=8, num_heads=2, vocab_size=16, seq_length=8)


def config(**values: Any) -> TrainConfig:
    return TrainConfig.parse({"model": TINY, "data": "x", **values})


def test_a_stage_and_a_placement_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match=r"placement hpz and zero_stage 2: give one of them"):
        config(placement="hpz", zero_stage=2)
    assert degrees(config(zero_stage=2).place(8)) == degrees(config(placement="zero2").place(8))


def test_a_configuration_says_where_it_cannot_be_placed() -> None:
    with pytest.raises(ConfigError, match=r"gradient_shard 3 does not .*\(8 ranks, dp 8\)"):
        config(gradient_shard=3, zero_stage=1).check(8)
    with pytest.raises(ConfigError, match="ranks_per_pair 4 does not divide ranks_per_node 2"):
        config(ranks_per_node=2, ranks_per_pair=4).check(8)


def test_the_node_is_the_configurations_then_the_launchers_then_all_ranks() -> None:
    hpz = config(placement="hpz")
    assert degrees(hpz.place(16, 4))[1] == 4
    assert degrees(hpz.place(16))[1] == 16
    assert degrees(config(placement="hpz", ranks_per_node=2).place(16, 4))[1] == 2
