"""Built-in validity: agrees with what the trainer itself refuses, and names its reasons."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from search_spaces import SearchSpace, load_space
from search_spaces.language.trainer_schema import BuiltinTrainer
from search_spaces.parameters import SEARCHABLE
from support.broken_rules import broken_rules
from trainer.plan.config import TrainConfig
from trainer.plan.fields import PipelineSchedule, RankOrder
from trainer.plan.limits import ConfigError

# Rules of policy: the trainer could run what they remove.
POLICY = {"tp_within_node", "nodes_in_cluster", "sequence_parallel_needs_tp"}
POLICY |= {"reduce_gradients_needs_split", "schedule_needs_pp", "rank_order_needs_pp_and_dp"}
FURTHER: list[dict[str, Any]] = [
    {},
    {"cp": [1, 2, 3]},
    {"cp": [2], "weight_shard": [1, 2]},
    {"first_stage_layers": [0, 2, 3], "last_stage_layers": [0, 1]},
    {
        "zero_stage": [0, 2],
        "pipeline_schedule": [*get_args(PipelineSchedule)],
        "recompute": ["none", "selective"],
    },
    {"zero_stage": [0, 2], "reduce_gradients": ["micro_batch", "step"]},
    {"async_tp": [False, True]},
    {"rank_order": [*get_args(RankOrder)], "cp": [1, 2]},
]

_sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3, unique=True)


@st.composite
def spaces(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from([4, 6, 8, 12]))
    return {
        "version": 1,
        "model": {
            "num_layers": draw(st.sampled_from([4, 6, 8, 12])),
            "num_heads": heads,
            "num_kv_heads": draw(st.sampled_from([k for k in (1, 2, 4, heads) if heads % k == 0])),
            "hidden_size": 8 * heads,
            "ffn_hidden_size": draw(st.sampled_from([96, 100, 128])),
            "vocab_size": draw(st.sampled_from([250, 256, 264])),
            "seq_length": draw(st.sampled_from([30, 32])),
        },
        "cluster": {
            "name": "c",
            "gpus_per_node": draw(st.sampled_from([1, 2, 4, 6, 8])),
            "memory_gib": 1,
            "peak_fp32_tflops": 1,
            "num_nodes": draw(st.sampled_from([2, 4])),
        },
        "trainer": {"builtin": {"data": "x", "precision": "fp32"}},
        "parameters": {
            "num_nodes": draw(_sizes),
            "tp": draw(_sizes),
            "pp": draw(_sizes),
            "vpp": draw(_sizes),
            "mbs": 1,
            "gas": draw(_sizes),
            **draw(st.sampled_from(FURTHER)),
            "sequence_parallel": [False, True],
        },
        "conditions": draw(st.sampled_from([{}, {"vpp": "pp > 1"}])),
        "objective": {"maximize": "tflops_per_gpu"},
    }


@pytest.mark.parametrize("alike", [8, pytest.param(10**9, marks=pytest.mark.heavy)])
@settings(max_examples=25)
@given(spaces())
def test_the_rules_and_the_trainer_refuse_the_same_configurations(
    tmp_path: Path, alike: int, description: dict[str, Any]
) -> None:
    """Of those that break the same rules of a space, at most so many, drawn at random."""
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(description))
    space = load_space(path)
    raws = grid(space)
    every = broken_rules(space, as_columns(raws))
    tried: Counter[frozenset[str]] = Counter()
    for row in np.random.default_rng(0).permutation(len(raws)):
        raw, broken = raws[row], frozenset(name for name, removed in every.items() if removed[row])
        if any(name.startswith("inactive_") for name in broken):
            continue  # the same configuration stands in another row
        tried[broken] += 1
        if tried[broken] > alike:
            continue
        config = TrainConfig.parse(space.train_config(raw, "x"))
        try:
            config.check(space.facts(raw)["world_size"])
            runs = True
        except ConfigError:
            runs = False
        assert runs == (broken <= POLICY), (raw, broken)


def grid(space: SearchSpace) -> list[dict[str, Any]]:
    names = list(space.parameters)
    values = [space.parameters[name].values for name in names]
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*values)]


def as_columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_every_setting_of_the_trainer_is_searched_or_fixed_by_the_space() -> None:
    settings_ = set(BuiltinTrainer.model_fields) | {"model", "warmup_steps", "measured_steps"}
    settings_ |= {"ranks_per_node", "ranks_per_pair"}  # facts of the cluster
    assert set(SEARCHABLE) == {
        *("first_stage_layers", "last_stage_layers", "pipeline_schedule", "rank_order"),
        *("tp", "cp", "ep", "pp", "vpp", "mbs", "gas", "zero_stage", "placement", "engine"),
        *("weight_shard", "secondary_shard", "gradient_shard", "optimizer_shard"),
        *("quantize_weights", "quantize_gradients", "quantize_secondary"),
        *("refresh_secondary", "reduce_precision", "reduce_gradients"),
        *("sequence_parallel", "recompute", "recompute_every", "compile", "precision"),
        *("tune_kernels", "chunked_loss", "offload_activations", "async_tp"),
        *("gx", "gy", "gz", "overlap_all_reduce", "overlap_reduce_scatter", "overlap_all_gather"),
    }
    assert settings_ | set(SEARCHABLE) == set(TrainConfig.model_fields)
    assert set(SEARCHABLE) & settings_ == {"precision"}


def violation(load: Callable[[str], SearchSpace], text: str, **config: Any) -> str | None:
    return load(text).first_violation(config)


OWN = """\
version: 1
cluster: {name: c, gpus_per_node: 8, memory_gib: 64, peak_bf16_tflops: 100, num_nodes: 4}
trainer: {command: [train]}
parameters: {PARAMETERS}
objective: {maximize: speed}
"""


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"num_nodes": 1, "tp": 2, "pp": 3}, "world_by_tp_pp"),
        ({"num_nodes": 2, "tp": 16}, "tp_within_node"),
        ({"num_nodes": 3, "tp": 3}, "tp_within_node"),
        ({"num_nodes": 5}, "nodes_in_cluster"),
        ({"vpp": 2, "pp": 1}, "vpp_needs_pp"),
        ({"vpp": 2, "pp": 4, "gas": 6}, "interleaved_gas"),
        ({"sequence_parallel": True, "tp": 1}, "sequence_parallel_needs_tp"),
        ({"weight_shard": 3}, "weights_by_dp"),
        ({"gradient_shard": 8, "tp": 2}, "gradients_by_dp"),
        ({"secondary_shard": 16}, "secondary_by_dp"),
        ({"weight_shard": 4, "gradient_shard": 2}, "gradients_nest_weights"),
        ({"weight_shard": 4, "secondary_shard": 8}, None),
        ({"gradient_shard": 4, "optimizer_shard": 2}, "optimizer_nests_gradients"),
        ({"optimizer_shard": 3}, "optimizer_by_dp"),
        ({"weight_shard": 1, "secondary_shard": 2}, "secondary_needs_split_weights"),
        ({"secondary_shard": 0, "quantize_secondary": True}, "quantize_secondary_needs_copy"),
        ({"weight_shard": 2, "secondary_shard": 0}, None),
        ({"pp": 8, "gas": 2}, None),
        ({"tp": 8}, None),
    ],
)
def test_a_rejection_names_its_rule(
    load: Callable[[str], SearchSpace], config: dict[str, Any], rule: str | None
) -> None:
    space = load(OWN.replace("PARAMETERS", yaml.safe_dump(config, default_flow_style=True)[1:-2]))
    found = space.first_violation(config)
    assert (found is None) if rule is None else (found is not None and found.startswith(f"{rule}:"))


def test_a_rejection_shows_the_figures_that_broke_the_rule(
    load: Callable[[str], SearchSpace],
) -> None:
    space = load(OWN.replace("PARAMETERS", "tp: 2, pp: 3"))
    assert space.first_violation({"tp": 2, "pp": 3}) == (
        "world_by_tp_pp: world_size % (tp * pp) == 0 (pp 3, tp 2, world_size 8)"
    )


def test_tp_may_span_nodes_where_that_is_allowed(load: Callable[[str], SearchSpace]) -> None:
    text = OWN.replace("PARAMETERS", "tp: 16, num_nodes: 2")
    config = {"tp": 16, "num_nodes": 2}
    assert "tp_within_node" in (violation(load, text, **config) or "")
    assert violation(load, text + "allow: [tp_across_nodes]\n", **config) is None


def test_rules_without_their_facts_are_left_out(load: Callable[[str], SearchSpace]) -> None:
    names = {rule.name for rule in load(OWN.replace("PARAMETERS", "lr: [0.1, 0.2]")).rules}
    assert not names & {"heads_by_tp", "layers_by_stages", "weights_by_dp", "sequence_by_tp"}


@pytest.mark.parametrize(
    "setting", ["save", "load", "initial_load_path", "loss_mask", "goldfish", "validation"]
)
def test_settings_of_all_trials_that_deepspeed_has_not_leave_it_out(
    load: Callable[[str], SearchSpace], setting: str
) -> None:
    value = {"goldfish": "{}", "validation": "{data: v}"}.get(setting, "there")
    builtin = f"trainer: {{builtin: {{data: x, {setting}: {value}}}}}"
    text = OWN.replace("trainer: {command: [train]}", f"model: tiny\n{builtin}")
    text = text.replace("PARAMETERS", "engine: [meshtune, deepspeed]")
    text = text.replace("maximize: speed", "maximize: tokens_per_second")
    assert violation(load, text, engine="meshtune") is None
    refused = violation(load, text, engine="deepspeed")
    assert (
        refused is not None
        and refused == f"deepspeed_{setting}: engine != 'deepspeed' (engine deepspeed)"
    )


def test_only_the_builtin_trainer_needs_the_vocabulary_by_tp(
    load: Callable[[str], SearchSpace],
) -> None:
    text = OWN.replace("trainer:", "model: gpt_neox_20b\ntrainer:").replace("PARAMETERS", "tp: 4")
    names = {rule.name for rule in load(text).rules}
    assert "heads_by_tp" in names and "vocab_by_tp" not in names
