"""The space for a model, a cluster and a number of nodes: what it searches, and that it loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from search_spaces import (
    FRAMEWORKS,
    Candidates,
    SearchSpace,
    SpaceArgumentError,
    SpaceError,
    check,
    default_space,
    load_space,
)


def values(space: SearchSpace, name: str) -> list[Any]:
    """Of a parameter or a fact, in all valid configurations; sorted, each once."""
    candidates = Candidates(space)
    indices = candidates.indices(10**6, np.random.default_rng(0), [], 10**6)
    return np.unique(space.columns(candidates.columns(indices)).columns[name]).tolist()


def model(folder: Path, **changes: int) -> str:
    """A file with one."""
    sizes = {"num_layers": 32, "hidden_size": 4096, "num_heads": 32}
    path = folder / "model.yaml"
    path.write_text(json.dumps({**sizes, "vocab_size": 32000, "seq_length": 4096, **changes}))
    return str(path)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("cluster", "nodes"), [("dgx_h100", 8), ("alps", 3), ("dgx_a100", 1)])
def test_every_framework_has_configurations_of_about_four_million_tokens(
    framework: str, cluster: str, nodes: int
) -> None:
    space = load_space(default_space("llama_8b", cluster, nodes, framework))
    assert check(space).valid > 5
    (batch,) = values(space, "global_batch_size")
    assert 400 <= batch <= 640  # of 8,192 tokens
    assert values(space, "num_nodes") == [nodes]
    assert values(space, "zero_stage") == [*FRAMEWORKS[framework].choices.zero_stages]
    assert space.unused() == []


def test_tensor_parallel_degrees_divide_the_groups_of_heads(tmp_path: Path) -> None:
    qwen = model(tmp_path, num_heads=28, num_kv_heads=4, hidden_size=3584)
    assert default_space(qwen, "dgx_h100")["parameters"]["tp"] == [1, 2, 4]


@pytest.mark.parametrize(
    ("seq_length", "searched"), [(8192, None), (16384, [1, 2, 4, 8, 16]), (65536, [1, 2, 4, 8, 16])]
)
def test_long_sequences_are_split(seq_length: int, searched: list[int] | None) -> None:
    content = default_space("llama_8b", "dgx_h100", 2, seq_length=seq_length)
    assert content["parameters"].get("cp") == searched
    assert load_space(content).model.seq_length == seq_length  # type: ignore[union-attr]


def test_experts_are_dealt_out_in_a_framework_that_can() -> None:
    content = default_space("mixtral_8x7b", "dgx_h100", 4)
    assert content["parameters"]["ep"] == [1, 2, 4, 8]
    space = load_space(content)
    assert values(space, "ep") == [1, 2, 4, 8] and values(space, "etp") == [1, 2, 4, 8]
    content["constraints"].append("tp > 1")
    assert values(load_space(content), "sequence_parallel") == [True]
    assert "ep" not in default_space("mixtral_8x7b", "dgx_h100", 4, "nanotron")["parameters"]
    assert "ep" not in default_space("llama_8b", "dgx_h100", 4)["parameters"]


def test_embedding_and_loss_count_as_layers_where_that_makes_pipelines_even() -> None:
    content = default_space("llama_405b", "dgx_h100", 64)
    assert content["parameters"]["account_for_embedding"] is True
    assert content["allow"] == []
    space = load_space(content)
    assert values(space, "pp") == [1, 2, 4, 8, 16, 32, 64]  # of 126 layers only 1 and 2
    assert values(space, "vpp") == [1, 2, 4, 8]
    for model, framework in (("llama_70b", "megatron-lm"), ("llama_405b", "megatron-lm-v3")):
        plain = default_space(model, "dgx_h100", 64, framework)
        assert "account_for_loss" not in plain["parameters"]


def test_layers_that_no_pipeline_divides_may_be_uneven(tmp_path: Path) -> None:
    content = default_space(model(tmp_path, num_layers=61), "dgx_h100", 2)
    assert content["allow"] == ["uneven_layers"]
    assert values(load_space(content), "pp") == [1, 2, 4, 8, 16]
    assert default_space("llama_8b", "dgx_h100", 2)["allow"] == []


def test_no_replica_of_a_large_machine_is_without_a_sequence() -> None:
    # Of 16,384 GPUs a replica has 8 x 32 x 16 at most; four million tokens are two sequences.
    space = load_space(default_space("llama_8b", "dgx_h100", 2048, seq_length=2**21))
    assert values(space, "global_batch_size") == [4]
    assert values(space, "pp") == [32]


def test_a_global_batch_is_kept() -> None:
    space = load_space(default_space("llama_8b", "dgx_h100", 2, global_batch_size=12))
    assert values(space, "global_batch_size") == [12]
    assert values(space, "dp") == [1, 2, 4]  # of 1, 2, 4, 8 and 16


def test_one_replica_is_counted_with_one_stage_of_zero() -> None:
    content = default_space("llama_8b", "dgx_h100", 1)
    content["constraints"].append("dp == 1")
    assert values(load_space(content), "zero_stage") == [0]


def test_the_content_is_what_a_file_would_say(tmp_path: Path) -> None:
    content = default_space("llama_8b", "dgx_h100", 2)
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    assert load_space(file).fingerprint == load_space(content).fingerprint


def test_a_configuration_gives_the_space_its_folders_name(tmp_path: Path) -> None:
    folder = tmp_path / "Llama 3.1 8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    content = default_space(str(folder / "config.json"), "dgx_h100")
    assert content["name"] == "Llama_3.1_8B_dgx_h100"
    assert "6.738 billion parameters" in content["description"]


@pytest.mark.parametrize(
    ("arguments", "argument", "complaint"),
    [
        ({"model": "lama_8b"}, "model", "did you mean 'llama_8b'"),
        ({"model": "no/config.json"}, "model", "there is no such file"),
        ({"cluster": "dgx_h10"}, "cluster", "did you mean 'dgx_h100'"),
        ({"cluster": "config.json"}, "cluster", r"accepted a file \(\*.yaml\)"),
        ({"framework": "megatron"}, "framework", "did you mean 'megatron-lm'"),
        ({"nodes": 0}, "nodes", "found 0, accepted 1 to"),
        ({"cluster": "frontier", "nodes": 20_000}, "nodes", "accepted 1 to 9,856 nodes of front"),
        (
            {"framework": "fsdp", "global_batch_size": 7, "nodes": 2},
            "global_batch_size",
            "found 7, accepted numbers of sequences that 16 GPUs of dgx_h100 can share, such as 51",
        ),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: dict[str, Any], argument: str, complaint: str
) -> None:
    given = {"model": "llama_8b", "cluster": "dgx_h100", **arguments}
    with pytest.raises(SpaceArgumentError, match=f"^{argument}: (?s:.*){complaint}") as caught:
        default_space(**given)
    assert caught.value.argument == argument


def test_what_no_file_can_say_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"^mine: found .*, accepted what YAML can write"):
        load_space({"version": 1, "name": "mine", "model": object()})
    with pytest.raises(SpaceError, match=r"^mine:1:1: key 'trainer' is missing"):
        load_space({"version": 1, "name": "mine", "cluster": "dgx_h100"})
