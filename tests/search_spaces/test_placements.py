"""Placements in a space: the trainer's own decisions, made for many configurations at once."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from search_spaces import SearchSpace, check, load_space
from search_spaces.cluster import Cluster
from search_spaces.rules.placements import ranks_per_pair
from support.broken_rules import broken_rules
from trainer.deepspeed.rules import unsupported as deepspeed_unsupported
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.plan.placement import Placement
from trainer.plan.presets import PRESETS

Load = Callable[[str], SearchSpace]

# Rules of policy: the trainer could run what they remove.
POLICY = {"tp_within_node", "placement_counts_once"}
MODEL = {"num_layers": 4, "num_heads": 8, "hidden_size": 64, "vocab_size": 256, "seq_length": 32}
CLUSTERS = {
    "pairs": {"gpus_per_node": 4, "links": [("card", 2), ("node", 4)]},
    "flat": {"gpus_per_node": 4, "links": [("node", 4)]},
    "couple": {"gpus_per_node": 2, "links": [("node", 2)]},
    "trio": {"gpus_per_node": 3, "links": []},
}


def cluster(name: str) -> dict[str, Any]:
    facts = CLUSTERS[name]
    links = [{"level": level, "gpus": gpus, "gb_per_s": 1} for level, gpus in facts["links"]]
    return {"name": name, "memory_gib": 1, "peak_fp32_tflops": 1, **facts, "links": links}


def description(parameters: dict[str, Any], machine: str = "pairs", **more: Any) -> str:
    return yaml.safe_dump(
        {
            "version": 1,
            "model": MODEL,
            "cluster": cluster(machine),
            "trainer": {"builtin": {"data": "x", "precision": "bf16"}},
            "parameters": parameters,
            "objective": {"maximize": "tflops_per_gpu"},
            **more,
        }
    )


def rows(space: SearchSpace) -> list[dict[str, Any]]:
    values = [parameter.values for parameter in space.parameters.values()]
    return [dict(zip(space.parameters, row, strict=True)) for row in itertools.product(*values)]


def columns(raws: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.array([raw[name] for raw in raws]) for name in raws[0]}


def decided(placement: Placement) -> dict[str, Any]:
    """A placement in the words of a space."""
    return {
        "weight_shard": placement.weight_shard,
        "secondary_shard": placement.secondary_shard,
        "gradient_shard": placement.gradient_shard,
        "optimizer_shard": placement.optimizer_shard,
        "quantize_weights": placement.gather_format == "int8",
        "quantize_gradients": placement.reduce_format == "int4",
        "quantize_secondary": placement.secondary_format == "int8",
    }


def compare(space: SearchSpace) -> int:
    """Hold every configuration of a space to what the trainer says; returns how many it runs."""
    raws = rows(space)
    every = broken_rules(space, columns(raws))
    facts = space.columns(columns(raws)).columns
    running = 0
    seen: dict[str, int] = {}
    for row, raw in enumerate(raws):
        broken = {name for name, removed in every.items() if removed[row]}
        if any(name.startswith("inactive_") for name in broken):
            continue  # the same configuration stands in another row
        world_size = int(np.broadcast_to(facts["world_size"], len(raws))[row])
        try:
            config = TrainConfig.parse(space.train_config(raw, "x"))
            config.check(world_size)
        except ConfigError as error:
            assert not broken <= POLICY, (raw, str(error))
            continue
        assert broken <= POLICY, (raw, broken)
        running += 1
        expected = decided(config.place(world_size))
        got = {name: np.broadcast_to(facts[name], len(raws))[row] for name in expected}
        assert got == expected, raw
        if "placement_counts_once" in broken:
            assert twin(config, world_size) in seen, raw
        elif "placement_counts_once" in every:
            assert seen.setdefault(twin(config, world_size), row) == row, raw
    return running


def twin(config: TrainConfig, world_size: int) -> str:
    """Equal for configurations that are trained in the same way."""
    placement = config.place(world_size)
    if placement.dp == 1:  # nothing is ever on its way
        placement = TrainConfig(model=config.model, data="x").place(1)
    words = {"placement", "zero_stage", *decided(placement), "reduce_precision"}
    if placement.secondary_shard == 0:
        words.add("refresh_secondary")
    return f"{config.model_dump(exclude=words)} {placement} {world_size}"


def test_every_preset_and_change_of_it_means_what_the_trainer_takes_it_for(load: Load) -> None:
    space = load(
        description(
            {
                "num_nodes": [1, 2],
                "tp": [1, 2],
                "placement": list(PRESETS),
                "weight_shard": [1, 2, 8],
                "secondary_shard": [0, 2],
                "quantize_secondary": [False, True],
                "quantize_gradients": [False, True],
            }
        )
    )
    assert compare(space) > 100


DEGREES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=2, unique=True)
FLAGS = st.sampled_from([[False], [True], [False, True], [True, False]])


@st.composite
def spaces(draw: st.DrawFn) -> str:
    """Up to six parameters of a placement, some of them conditional, on some machine."""
    everything = {
        "placement": st.lists(st.sampled_from(PRESETS), min_size=1, max_size=4, unique=True),
        "zero_stage": st.lists(st.sampled_from([0, 1, 2, 3]), min_size=1, unique=True),
        "weight_shard": DEGREES,
        "secondary_shard": st.lists(st.sampled_from([0, 1, 2, 3, 4]), min_size=1, unique=True),
        "gradient_shard": DEGREES,
        "optimizer_shard": DEGREES,
        "quantize_weights": FLAGS,
        "quantize_gradients": FLAGS,
        "quantize_secondary": FLAGS,
        "refresh_secondary": st.sampled_from([["step"], ["micro_batch", "step"]]),
        "reduce_precision": st.sampled_from([["fp32"], ["bf16", "fp32"], ["fp32", "bf16"]]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(everything)), min_size=1, max_size=4))
    parameters: dict[str, Any] = {name: draw(everything[name]) for name in chosen}
    parameters |= {"num_nodes": draw(st.sampled_from([[1], [2, 1]])), "tp": [1, 2]}
    conditions = {}
    conditional = draw(st.sampled_from([None, *chosen]))
    if conditional is not None:
        conditions[conditional] = draw(st.sampled_from(["tp == 1", "num_nodes > 1", "mbs == 2"]))
        parameters["mbs"] = [1, 2]
    return description(parameters, draw(st.sampled_from(sorted(CLUSTERS))), conditions=conditions)


@settings(max_examples=60)
@given(spaces())
def test_the_space_and_the_trainer_place_alike(tmp_path: Path, text: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    compare(load_space(path))


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"placement": "hpz", "zero_stage": 1}, "one_placement"),
        ({"placement": "hpz", "zero_stage": 0}, None),
        ({"placement": "zero3", "gradient_shard": 4}, "gradients_nest_weights"),
        ({"placement": "zero3", "optimizer_shard": 4}, "optimizer_nests_gradients"),
        ({"placement": "mics", "optimizer_shard": 12}, "optimizer_by_dp"),
        ({"placement": "zero1", "secondary_shard": 2}, "secondary_needs_split_weights"),
        ({"placement": "zero3", "quantize_secondary": True}, "quantize_secondary_needs_copy"),
        ({"placement": "hpz", "quantize_secondary": True}, None),
        ({"placement": "zero1", "quantize_weights": True}, "quantize_weights_needs_split"),
        ({"placement": "zero0", "quantize_gradients": True}, "quantize_gradients_needs_split"),
        ({"placement": "zero2", "quantize_gradients": True}, None),
        ({"placement": "zero3", "refresh_secondary": "micro_batch"}, None),
        ({"placement": "zero++", "reduce_precision": "bf16"}, None),
        ({"placement": "zero_topo", "weight_shard": 8, "secondary_shard": 4}, None),
    ],
)
def test_a_rejected_placement_names_its_rule(
    load: Load, config: dict[str, Any], rule: str | None
) -> None:
    config = {"num_nodes": 2, **config}
    found = load(description({n: [v] for n, v in config.items()})).first_violation(config)
    assert (found or "None").split(":")[0] == str(rule), found


def test_a_rejection_shows_the_degrees_that_a_preset_came_to(load: Load) -> None:
    config = {"num_nodes": 2, "placement": "zero3", "gradient_shard": 4}
    assert load(description({n: [v] for n, v in config.items()})).first_violation(config) == (
        "gradients_nest_weights: gradient_shard % weight_shard == 0 "
        "(gradient_shard 4, weight_shard 8)"
    )


@pytest.mark.parametrize("alike", [8, pytest.param(10**9, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_space_and_the_engine_know_alike_what_deepspeed_cannot_train(
    load: Load, device: Literal["cpu", "cuda"], alike: int
) -> None:
    """Of those that break the same rules, at most so many, drawn at random."""
    parameters = {
        "engine": ["deepspeed", "meshtune"],
        "num_nodes": [1, 2],
        "tp": [1, 2],
        "pp": [1, 2],
        "vpp": [1, 2],
        "gas": 4,
        "placement": list(PRESETS),
        "secondary_shard": [1, 2],
        "quantize_weights": [False, True],
        "quantize_gradients": [False, True],
        "recompute": ["none", "selective"],
        "precision": ["bf16", "fp16"],
    }
    conditions = {
        "secondary_shard": "placement in ['hpz', 'zero3']",
        "quantize_weights": "placement != 'zero++'",
        "quantize_gradients": "placement != 'zero_topo'",
    }
    trainer = {"builtin": {"data": "x", "device": device}}
    space = load(description(parameters, "flat", conditions=conditions, trainer=trainer))
    raws = rows(space)
    every = broken_rules(space, columns(raws))
    engine = [name for name in every if name.startswith("deepspeed_")]
    others = [name for name in every if name not in (*engine, "placement_counts_once")]
    refused_by_others = np.logical_or.reduce([every[name] for name in others])
    refused = np.logical_or.reduce([every[name] for name in engine])
    deepspeed = columns(raws)["engine"] == "deepspeed"
    assert not np.any(refused & ~deepspeed)
    asked = np.flatnonzero(deepspeed & ~refused_by_others)
    tried: Counter[tuple[str, ...]] = Counter()
    for row in np.random.default_rng(0).permutation(asked):
        broken = tuple(name for name in engine if every[name][row])
        tried[broken] += 1
        if tried[broken] > alike:
            continue
        config = TrainConfig.parse(space.train_config(raws[row], "x"))
        world_size = 4 * raws[row]["num_nodes"]
        reason = deepspeed_unsupported(config, world_size, device, None)
        assert refused[row] == (reason is not None), (raws[row], reason)
    assert 0 < np.count_nonzero(refused[asked]) < len(asked)


def test_an_engine_that_is_not_searched_has_no_rules(load: Load) -> None:
    names = {rule.name for rule in load(description({"zero_stage": [0]})).rules}
    assert not any(name.startswith("deepspeed_") for name in names)


def test_deepspeed_does_not_time_its_collectives(load: Load) -> None:
    trainer = {"builtin": {"data": "x", "time_communication": True}}
    space = load(description({"engine": ["meshtune", "deepspeed"]}, trainer=trainer))
    found = space.first_violation({"engine": "deepspeed"})
    assert found is not None and found.startswith("deepspeed_time_communication:")
    assert space.first_violation({"engine": "meshtune"}) is None


def test_the_first_spelling_of_a_placement_counts(load: Load) -> None:
    parameters = {"num_nodes": [1, 2], "placement": ["zero3", "mics"], "secondary_shard": [0, 4]}
    space = load(description(parameters))
    one_node = {"num_nodes": 1, "placement": "mics", "secondary_shard": 0}
    found = space.first_violation(one_node)
    assert found is not None and found.startswith("placement_counts_once:")
    assert space.first_violation({**one_node, "placement": "zero3"}) is None
    assert space.first_violation({**one_node, "num_nodes": 2}) is None
    assert check(space).valid == 2 * 2 + 2


def test_a_spelling_that_depends_on_a_condition_is_compared_where_it_counts(load: Load) -> None:
    parameters = {"num_nodes": 2, "mbs": [1, 2], "placement": ["hpz", "zero3"]}
    parameters["secondary_shard"] = [4, 0]
    space = load(description(parameters, conditions={"secondary_shard": "mbs == 2"}))
    # mbs 1: hpz and zero3; mbs 2: hpz, zero3 with a copy of 4 is hpz again, and either without
    kept = [row for row in rows(space) if space.first_violation(row) is None]
    assert [(r["mbs"], r["placement"], r["secondary_shard"]) for r in kept] == [
        (1, "hpz", 4),
        (1, "zero3", 4),
        (2, "hpz", 4),
        (2, "hpz", 0),
    ]


def test_stages_alone_stay_as_they_are_listed(load: Load) -> None:
    space = load(description({"tp": [1, 4], "zero_stage": [0, 1, 2, 3]}))
    assert check(space).valid == 8


def test_constraints_can_use_what_a_placement_comes_to(load: Load) -> None:
    space = load(
        description(
            {"num_nodes": [2], "placement": list(PRESETS)},
            constraints=["weight_shard <= ranks_per_pair and gradient_shard <= gpus_per_node"],
        )
    )
    kept = [row["placement"] for row in rows(space) if space.first_violation(row) is None]
    assert kept == ["zero0", "zero1", "zero_topo"]
    assert load(description({"zero_stage": [3]})).facts({"zero_stage": 3})["placement"] == "zero3"


def test_a_trainer_of_ones_own_may_call_anything_a_placement(load: Load) -> None:
    text = description({"placement": ["spread", "packed"], "engine": ["a"]})
    content = yaml.safe_load(text) | {"trainer": {"command": ["train", "{placement}"]}}
    space = load(yaml.safe_dump(content))
    assert check(space).valid == 2
    assert space.command({"placement": "packed", "engine": "a"}, "d") == ("train", "packed")


@pytest.mark.parametrize(
    ("name", "expected"), [("pairs", 2), ("flat", 1), ("couple", 1), ("trio", 1)]
)
def test_a_pair_is_the_innermost_of_several_links(name: str, expected: int) -> None:
    assert ranks_per_pair(Cluster.model_validate(cluster(name))) == expected


def test_the_cluster_says_what_shares_a_node_and_a_card(load: Load) -> None:
    space = load(description({"num_nodes": [2], "placement": ["zero_topo"]}))
    config = space.train_config({"num_nodes": 2, "placement": "zero_topo"}, "x")
    assert (config["ranks_per_node"], config["ranks_per_pair"]) == (4, 2)
    placement = TrainConfig.parse(config).place(8)
    assert (placement.weight_shard, placement.gradient_shard) == (2, 4)


def test_a_large_space_of_placements_is_counted(load: Load) -> None:
    """Every parameter of a placement at once, 14 million raw configurations."""
    parameters: dict[str, Any] = {
        "num_nodes": {"log2": [1, 16]},
        "tp": [1, 2, 4],
        "pp": [1, 2, 4],
        "mbs": {"range": [1, 8]},
        "gas": {"log2": [1, 128]},
        "placement": ["zero3", "hpz", "mics", "zero++", "zero_topo"],
        "secondary_shard": [0, 2, 4, 8],
        "gradient_shard": [4, 8, 16],
        "quantize_weights": [False, True],
        "quantize_gradients": [False, True],
        "quantize_secondary": [False, True],
        "refresh_secondary": ["step", "micro_batch"],
        "recompute": ["none", "full"],
        "sequence_parallel": [False, True],
    }
    report = check(load(description(parameters)))
    assert report.raw > 10_000_000 and 0 < report.valid < report.raw
