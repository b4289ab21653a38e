"""The shipped spaces, models and clusters say what their sources print."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import yaml

from foundation.documents import read_document
from foundation.records import validate
from search_spaces import SearchSpace, check, json_schema, load_space, shipped_records
from search_spaces.cluster import Cluster
from search_spaces.language.schema import ModelFile
from search_spaces.shipped import SHIPPED, read_named

REQUIRED = {
    "tiny_cpu",
    "tiny_moe_cpu",
    "gpt_175b_frontier_table4",
    "gpt_175b_frontier",
    "gpt_22b_frontier",
    "gpt_1t_frontier",
    "gpt_20b_zero_topo_frontier",
    "llama_8b_dgx_h100",
    "llama_8b_long_context",
    "placements_slow_links",
    "gpt_22b_placements_frontier",
}


def model(name: str) -> ModelFile:
    return read_named(ModelFile, "model", name)


def cluster(name: str) -> Cluster:
    return validate(Cluster, read_document(SHIPPED / "clusters" / f"{name}.yaml"))


def test_all_promised_spaces_are_shipped() -> None:
    assert {*shipped_records("space")} >= REQUIRED


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_the_schema_for_editors_accepts_every_shipped_space(name: str) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    text = (SHIPPED / f"{name}.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), schema)
    jsonschema.validate(yaml.safe_load(load_space(name).frozen()), schema)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["version"], 2),
        (["parameters", "tp"], []),
        (["trial", "timeout"], "5 parsecs"),
        (["objective"], {"maximise": "x"}),
        (["modle"], "tiny"),
        (["cluster"], {"name": "c"}),
    ],
)
def test_the_schema_for_editors_refuses_mistakes(path: list[str], value: Any) -> None:
    content = yaml.safe_load((SHIPPED / "gpt_175b_frontier.yaml").read_text())
    target = content
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, json_schema())


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_shipped_space_survives_freezing(name: str, tmp_path: Any) -> None:
    space = load_space(name)
    path = tmp_path / "frozen.yaml"
    path.write_text(space.frozen())
    assert load_space(path).fingerprint == space.fingerprint


def test_table_iv_has_its_3264_points_of_which_476_do_not_divide() -> None:
    """Dash et al. 2023, Table IV: PP x TP x MBS x GAS x ZeRO-1 x NNODES."""
    space = load_space("gpt_175b_frontier_table4")
    values = {n: set(p.values) for n, p in space.parameters.items() if len(p.values) > 1}
    assert values == {
        "pp": {1, 2, 4, 8, 12, 16},
        "tp": {1, 2, 4, 8},
        "mbs": set(range(4, 21)),
        "gas": {5, 10},
        "zero_stage": {0, 1},
        "num_nodes": {12, 16},
    }
    report = check(space)
    assert (report.raw, report.valid) == (3264, 3264 - 476)
    assert {r.name: r.alone for r in report.rules if r.alone} == {"world_by_tp_pp": 476}
    assert space.objective.as_dict() == {"maximize": "tflops_per_gpu"}
    assert space.trial.timeout_s == 20 * 60


def recipe(space_name: str, **values: Any) -> dict[str, Any]:
    """A configuration: the values given, the first of every other parameter."""
    space = load_space(space_name)
    return {name: values.get(name, p.pinned) for name, p in space.parameters.items()}


def test_the_best_recipe_of_175b_is_in_its_space_and_not_in_table_iv() -> None:
    """Dash et al. 2023, Table V: TP 4, PP 16, MBS 1, GBS 640, ZeRO-1, checkpointing."""
    space = load_space("gpt_175b_frontier")
    config = recipe(
        "gpt_175b_frontier",
        num_nodes=16,
        tp=4,
        pp=16,
        mbs=1,
        gas=320,
        zero_stage=1,
        recompute="full",
    )
    assert space.first_violation(config) is None
    assert space.facts(config)["global_batch_size"] == 640
    table4 = load_space("gpt_175b_frontier_table4")
    kept = {name: config[name] for name in table4.parameters}
    assert (table4.first_violation(kept) or "").startswith("mbs: found 1")


@pytest.mark.parametrize(("num_nodes", "gas"), [(64, 1600), (128, 800)])
def test_the_best_recipe_of_1t_is_in_its_space(num_nodes: int, gas: int) -> None:
    """Dash et al. 2023, Table V: TP 8, PP 64, MBS 1, GBS 1600, ZeRO-1."""
    config = recipe(
        "gpt_1t_frontier",
        num_nodes=num_nodes,
        tp=8,
        pp=64,
        mbs=1,
        gas=gas,
        zero_stage=1,
        recompute="full",
    )
    space = load_space("gpt_1t_frontier")
    assert space.first_violation(config) is None
    assert space.facts(config)["global_batch_size"] == 1600


@pytest.mark.parametrize("seq_length", [32_768, 1_048_576])
def test_long_sequences_are_divisible_by_every_number_of_ranks_that_shares_them(
    load: Callable[[str], SearchSpace], seq_length: int
) -> None:
    text = (SHIPPED / "llama_8b_long_context.yaml").read_text()
    space = load(text.replace("seq_length: 131072", f"seq_length: {seq_length}"))
    assert space.model is not None and space.model.seq_length == seq_length
    removed = {rule.name for rule in check(space).rules if rule.alone}
    assert not removed & {"sequence_by_cp", "sequence_by_tp_cp", "weights_by_dp"}
    config = {"num_nodes": 4, "tp": 1, "cp": 8, "pp": 1, "mbs": 1, "gas": 8, "zero_stage": 3}
    whole = {**config, "sequence_parallel": False, "recompute": "full"}
    assert space.first_violation(whole) is None
    facts = space.facts(whole)
    assert (facts["dp"], facts["weight_shard"], facts["global_batch_size"]) == (4, 32, 32)


def test_one_space_searches_parallelism_zero_stages_and_hierarchical_placements_together() -> None:
    space = load_space("gpt_22b_placements_frontier")
    varied = {name for name, parameter in space.parameters.items() if parameter.varies}
    assert varied >= {"tp", "pp", "mbs", "gas", "zero_stage", "placement", "secondary_shard"}
    own = {"num_nodes": 8, "tp": 2, "pp": 2, "mbs": 1, "recompute": "full"}
    staged = {"gas": 16, "zero_stage": 1}
    placed = {"gas": 16, "zero_stage": 0, "placement": "zero_topo", "secondary_shard": 8}
    for placement in (staged, placed):
        assert space.first_violation(own | placement) is None


@pytest.mark.parametrize(
    ("weights", "secondary", "gradients"), [(384, 0, 384), (384, 8, 384), (2, 2, 8), (2, 8, 8)]
)
def test_zero_3_zero_pp_and_zero_topo_are_in_the_20b_space(
    weights: int, secondary: int, gradients: int
) -> None:
    """Xu et al. 2025, Tables IV and V, on 48 nodes."""
    config = recipe(
        "gpt_20b_zero_topo_frontier",
        weight_shard=weights,
        secondary_shard=secondary,
        gradient_shard=gradients,
    )
    assert load_space("gpt_20b_zero_topo_frontier").first_violation(config) is None


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads", "billions"),
    [  # Dash et al. 2023, Table I; Singh et al. 2024, Table II
        ("gpt_1_4b", 24, 2112, 24, 1.4),
        ("gpt_22b", 48, 6144, 48, 22),
        ("gpt_175b", 96, 12288, 96, 175),
        ("gpt_1t", 128, 25600, 128, 1000),
        ("gpt_5b", 24, 4096, 32, 5),
        ("gpt_10b", 32, 5120, 40, 10),
        ("gpt_20b", 32, 7168, 56, 20),
        ("gpt_40b", 38, 9216, 72, 40),
        ("gpt_60b", 56, 9216, 72, 60),
        ("gpt_80b", 42, 12288, 96, 80),
        ("gpt_160b", 84, 12288, 96, 160),
        ("gpt_320b", 96, 16384, 128, 320),
        ("gpt_640b", 192, 16384, 128, 640),
        ("gpt_neox_20b", 44, 6144, 64, 20.6),
        ("llama_8b", 32, 4096, 32, 8.03),
    ],
)
def test_a_model_has_the_printed_shape_and_about_the_printed_size(
    name: str, layers: int, hidden: int, heads: int, billions: float
) -> None:
    record = model(name)
    assert (record.num_layers, record.hidden_size, record.num_heads) == (layers, hidden, heads)
    assert record.config().num_parameters / 1e9 == pytest.approx(billions, rel=0.06)
    assert record.source


@pytest.mark.parametrize(
    ("name", "gpus", "memory_gib", "peak", "gemm", "nics_gb_per_s"),
    [  # Singh et al. 2024, V-C, VI-B, VI-C; Dash et al. 2023, footnote 1; Xu et al. 2025, Table I
        ("frontier", 8, 64, 191.5, 105, 100),
        ("perlmutter", 4, 40, 312, 280, 100),
        ("alps", 4, 96, 989, 813, 100),
        ("dgx_a100", 8, 80, 312, 271.2, 200),
        ("dgx_h100", 8, 80, 989, 794.5, 400),
    ],
)
def test_a_cluster_has_the_printed_facts(
    name: str, gpus: int, memory_gib: float, peak: float, gemm: float, nics_gb_per_s: float
) -> None:
    machine = cluster(name)
    assert (machine.name, machine.gpus_per_node, machine.memory_gib) == (name, gpus, memory_gib)
    assert (machine.peak_bf16_tflops, machine.gemm_bf16_tflops) == (peak, gemm)
    assert machine.nic is not None
    assert machine.nic.count * machine.nic.gb_per_s == nics_gb_per_s
    assert machine.links[-1].gpus == gpus
    assert machine.peak_fp32_tflops is None


def test_a_cluster_whose_links_do_not_reach_the_node_is_refused() -> None:
    facts = {"name": "c", "gpus_per_node": 8, "memory_gib": 1, "peak_fp32_tflops": 1}
    with pytest.raises(ValueError, match="spans 4 GPUs"):
        Cluster(**facts, links=[{"level": "half", "gpus": 4, "gb_per_s": 1}])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="grow"):
        Cluster(**facts, links=[{"level": "n", "gpus": g, "gb_per_s": 1} for g in (8, 2)])  # type: ignore[arg-type]


def test_reading_a_space_imports_no_heavy_package() -> None:
    code = (
        "import sys, search_spaces as s; s.check(s.load_space('tiny_cpu'));"
        "print({'torch', 'pandas', 'deephyper', 'scipy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_demo_fits_four_ranks_and_its_budget() -> None:
    space = load_space("tiny_cpu")
    assert space.cluster.gpus_per_node == 4 and space.unmeasured() == ""
    assert 12 <= (space.budget.trials or 0) <= 16
    assert check(space).valid > 10 * (space.budget.trials or 0)
    assert space.trainer.builtin is not None
    assert space.trainer.builtin.device_memory_bytes == space.cluster.memory_bytes


def test_the_presets_of_the_slow_links_space_are_the_papers_on_its_nodes() -> None:
    """Two nodes of two cards of two: ZeRO-topo's weights over a card, gradients over a node."""
    space = load_space("placements_slow_links")
    assert space.unmeasured() == ""
    shares = ("weight_shard", "secondary_shard", "gradient_shard", "optimizer_shard")
    found = {}
    for name in space.parameters["placement"].values:
        config = {"num_nodes": 2, "placement": name, "mbs": 4, "gas": 2}
        raw = space.raw({"quantize_weights": False, "quantize_gradients": False, **config})
        assert space.first_violation(raw) is None
        found[name] = tuple(space.facts(raw)[share] for share in shares)
    assert found == {
        "zero1": (1, 0, 1, 8),
        "zero2": (1, 0, 8, 8),
        "zero3": (8, 0, 8, 8),
        "hpz": (8, 4, 8, 8),
        "mics": (4, 0, 4, 4),
        "zero++": (8, 4, 8, 8),
        "zero_topo": (2, 2, 4, 8),
    }
