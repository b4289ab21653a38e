"""Layers of a pipeline's stages: as published runs and frameworks split them, and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from search_spaces import SearchSpace, SpaceError, check
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.stages import Split, StageLayers

Load = Callable[[str], SearchSpace]


def stages(layers: int, pp: int, split: Split = "even", vpp: int = 1, **said: float) -> StageLayers:
    return StageLayers(layers, pp, vpp, split, **said)


BOTH = {"account_for_embedding": 1, "account_for_loss": 1}


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        # BLOOM: embedding and output layer count, so that each of 12 stages has six of 72.
        (stages(70, 12, "last_fewer", **BOTH), (5, 6, 5)),
        (stages(70, 12, "even", **BOTH), (5, 6, 5)),
        # BLOOM's prequel: "the last stage has 1 block, while the rest have 7".
        (stages(78, 12, "last_fewer"), (7, 7, 1)),
        # 175B on LUMI: 9 ... 9, 7.
        (stages(70, 8, "last_fewer"), (9, 9, 7)),
        (stages(70, 8, "even", last_stage_layers=7), (9, 9, 7)),
        # 2.7B on Alps: 7, 9, 9, 9.
        (stages(34, 4, "even", first_stage_layers=7), (7, 9, 9)),
        # Llama 3 405B, interleaved: two of 128 on each of 64 chunks.
        (stages(126, 8, "even", 8, **BOTH), (15, 16, 15)),
        (stages(126, 8, "first_more", **BOTH), (15, 16, 15)),
        (stages(40, 4, "even", first_stage_layers=5, last_stage_layers=5), (5, 15, 5)),
        (stages(15, 2, "even", first_stage_layers=7, last_stage_layers=8), (7, 0, 8)),
        (stages(32, 1, "even", first_stage_layers=7, **BOTH), (32, 0, 32)),
    ],
)
def test_stages_have_the_layers_of_published_runs(
    split: StageLayers, expected: tuple[int, int, int]
) -> None:
    assert (split.first, split.second, split.last) == expected
    assert split.all_have_some


def one_by_one(layers: int, pp: int, split: Split, said: StageLayers) -> list[float] | None:
    """Layers of every stage, dealt out stage by stage; None where that cannot be."""
    given = {0: said.first_stage_layers, pp - 1: said.last_stage_layers} if pp > 1 else {}
    given = {stage: number for stage, number in given.items() if number}
    ends = {0: said.account_for_embedding, pp - 1: said.account_for_loss}
    counted = sum(number for stage, number in ends.items() if stage not in given)
    counted = said.account_for_embedding + said.account_for_loss if pp == 1 else counted
    left = layers - sum(given.values()) + counted
    sharing = [stage for stage in range(pp) if stage not in given]
    fullest = math.ceil(left / len(sharing)) if sharing else 0
    found = []
    for stage in range(pp):
        if stage in given:
            found.append(given[stage])
            continue
        rest = len([other for other in sharing if other >= stage])
        units = min(fullest, left) if split == "last_fewer" else math.ceil(left / rest)
        left -= units
        found.append(units - (ends.get(stage, 0) if pp > 1 else counted))
    return found if left == 0 and min(found) >= 1 else None


@pytest.mark.parametrize("split", ["even", "first_more", "last_fewer"])
def test_columns_of_splits_are_those_that_are_dealt_out_stage_by_stage(split: Split) -> None:
    random = np.random.default_rng(1)
    layers, pp = random.integers(1, 60, 2000), random.integers(1, 12, 2000)
    said = [random.integers(0, most, 2000) * random.integers(0, 2, 2000) for most in (9, 9, 2, 2)]
    columns = StageLayers(layers, pp, np.ones(2000), split, *said)
    refused = 0
    for row in range(2000):
        alone = StageLayers(layers[row], pp[row], 1, split, *(column[row] for column in said))
        expected = one_by_one(layers[row], pp[row], split, alone)
        assert bool(columns.all_have_some[row]) is (expected is not None)
        if expected is None:
            refused += 1
            continue
        found = (columns.first[row], columns.last[row])
        assert found == (expected[0], expected[-1])
        assert columns.second[row] == (max(expected[1:-1]) if pp[row] > 2 else 0)
        even = len({*expected[1:-1]}) <= 1  # and the ends, with what counts there
        if pp[row] > 2 and split == "even" and columns.are_even[row]:
            assert even
    assert 200 < refused < 1800


SPACE = """\
version: 1
model: {{num_layers: {layers}, hidden_size: 1024, num_heads: 16, vocab_size: 50304,
        seq_length: 2048}}
cluster: dgx_h100
trainer:
  framework: {framework}
  command: [train, "{{pp}}", "{{vpp}}", "{{mbs}}", "{{gas}}", {arguments}]
parameters: {{tp: 1, mbs: 1, gas: 64, pp: {pp}, {more}}}
objective: {{minimize: step_time_s.median}}
{rest}
"""


def space(load: Load, layers: int, framework: str = "megatron-lm", **said: Any) -> SearchSpace:
    rest, pp = said.pop("rest", ""), said.pop("pp", 8)
    arguments = ", ".join(f'"{{{name}}}"' for name in said)
    more = ", ".join(f"{name}: {str(value).lower()}" for name, value in said.items())
    return load(
        SPACE.format(
            layers=layers, framework=framework, arguments=arguments, pp=pp, more=more, rest=rest
        )
    )


def refusal(load: Load, layers: int, framework: str = "megatron-lm", **said: Any) -> str | None:
    found = space(load, layers, framework, **said)
    config = {name: parameter.values[0] for name, parameter in found.parameters.items()}
    return found.first_violation(config)


def test_a_split_that_the_framework_does_not_make_by_itself_is_refused_with_what_it_takes(
    load: Load,
) -> None:
    assert refusal(load, 70) == (
        "layers_by_stages: num_layers % (pp * vpp) == 0 (num_layers 70, pp 8, vpp 1); set "
        "first_stage_layers, last_stage_layers, account_for_embedding, account_for_loss, "
        "pipeline_layout, or allow: [uneven_layers]"
    )
    assert refusal(load, 70, last_stage_layers=7) is None
    assert refusal(load, 70, rest="allow: [uneven_layers]") is None
    assert refusal(load, 126, vpp=8, account_for_embedding=True, account_for_loss=True) is None
    with pytest.raises(SpaceError, match=r"no configuration is valid(.|\n)*first_stage_layers, "):
        check(space(load, 70))


@pytest.mark.parametrize(
    ("layers", "said", "rule"),
    [
        (70, {"last_stage_layers": 8}, "layers_by_stages"),  # 62 over seven stages
        (70, {"first_stage_layers": 70}, "layers_for_stages"),
        (70, {"account_for_embedding": True}, "layers_by_stages"),
        (64, {"first_stage_layers": 8, "account_for_loss": True}, "stages_given_or_counted"),
        (64, {"pp": 2, "first_stage_layers": 30, "last_stage_layers": 33}, "layers_by_stages"),
        (64, {"vpp": 2, "first_stage_layers": 1}, "layers_by_stages"),  # half a layer a chunk
    ],
)
def test_layers_that_leave_no_equal_shares_are_refused(
    load: Load, layers: int, said: dict[str, Any], rule: str
) -> None:
    assert (refusal(load, layers, **said) or "").startswith(f"{rule}: ")


def test_frameworks_split_in_their_own_ways(load: Load) -> None:
    assert refusal(load, 70, "megatron-deepspeed") is None
    assert refusal(load, 70, "torchtitan") is None
    assert refusal(load, 70, "nanotron") is None
    # Filled two by two, ten layers end on the fifth of eight stages.
    assert (refusal(load, 10, "megatron-deepspeed") or "").startswith("layers_for_stages")
    assert refusal(load, 10, "nanotron") is None
    # No argument of theirs gives a stage its layers, so that such a parameter changes nothing.
    assert "layers_by_stages" in (refusal(load, 70, "axonn", last_stage_layers=7) or "")


def test_without_a_pipeline_settings_of_stages_count_once(load: Load) -> None:
    # Of 64 layers: pp 1 once, pp 8 with its share of 8, or with a first stage that leaves 7 each.
    searched = space(load, 64, pp="[1, 8]", first_stage_layers="[0, 15]")
    assert check(searched).valid == 3
    assert check(space(load, 64, pp="[1, 8]", first_stage_layers=15)).valid == 2


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("first_stage_layers", "-1", "accepted 0 or more"),
        ("account_for_loss", "2", "true or false"),
        ("decoder_first_pipeline_num_layers", "7", "is first_stage_layers here"),
        ("account_for_loss_in_pipeline_split", "true", "is account_for_loss here"),
    ],
)
def test_settings_of_stages_are_checked_and_go_by_their_short_names(
    load: Load, name: str, value: str, accepted: str
) -> None:
    with pytest.raises(SpaceError, match=accepted):
        space(load, 64, **{name: value})


def test_the_built_in_trainer_has_a_first_and_a_last_stage_of_their_own(
    load: Load, good: str
) -> None:
    with pytest.raises(SpaceError, match="unknown parameter of the built-in trainer"):
        load(good.replace("  num_nodes: 1", "  num_nodes: 1\n  account_for_loss: true"))
    shape = {"num_layers": 34, "hidden_size": 8, "num_heads": 2, "vocab_size": 8, "seq_length": 8}
    config = {"model": shape, "data": "x", "pp": 4}
    told = {"first_stage_layers": 7, "last_stage_layers": 9}
    trained = TrainConfig.parse({**config, **told})
    trained.check(4)
    held = [len(trained.stages.layers(stage)) for stage in range(4)]
    counted = stages(34, 4, "even", **told)
    assert held == [7, 9, 9, 9] == [counted.first, counted.second, counted.second, counted.last]
    with pytest.raises(ConfigError, match="no equal share for each other stage of pp 4"):
        TrainConfig.parse({**config, "first_stage_layers": 8}).check(4)
    with pytest.raises(ConfigError, match="without a pipeline: pp is 1; set both to 0"):
        TrainConfig.parse({**config, **told, "pp": 1}).check(4)
    with pytest.raises(ConfigError, match="give first_stage_layers or last_stage_layers"):
        TrainConfig.parse(config).check(4)
