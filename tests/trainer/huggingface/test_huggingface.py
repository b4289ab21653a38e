"""Weights of ``transformers``, in and out: the logits are the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from support import huggingface_models as theirs
from support.checkpoint_cases import MODELS
from trainer.checkpoint.integrity import CheckpointError, SafeReader
from trainer.huggingface.__main__ import main
from trainer.huggingface.names import check_config, config_of
from trainer.huggingface.safetensors import read_folder
from trainer.huggingface.weights import export
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError
from trainer.runtime.device import Device
from trainer.runtime.exit_codes import EXIT_INVALID
from trainer.train import Trainer

LONGER = {"olmoe", "deepseek v2", "deepseek v2 lite"}
KINDS = [
    pytest.param(model, marks=pytest.mark.heavy) if model in LONGER else model
    for model in MODELS
    if model != "moe"
]


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def settings(model: str, **values: Any) -> dict[str, Any]:
    shape = MODELS[model] | values.pop("shape", {})
    return {
        "model": shape, "data": "none", "precision": "fp32", "device": "cpu", "warmup_steps": 0,
        "measured_steps": 1, **values,
    }  # fmt: skip


def made(model: str, **values: Any) -> Trainer:
    """A trainer that has begun."""
    config = TrainConfig.parse(settings(model, **values))
    trainer = Trainer(config, Device("cpu"))
    trainer.resume()
    return trainer


def ours(trainer: Trainer, tokens: Tensor) -> Tensor:
    """Logits of a trainer's weights, in float64."""
    with torch.no_grad():
        return trainer.stages[0].double()(tokens).transpose(0, 1)


def assert_equal(found: Tensor, expected: Tensor) -> None:
    """Both computed in float64, whose last digits differ by the order of sums."""
    assert found.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13 * expected.abs().max().item())


def some_tokens(model: str) -> Tensor:
    shape = MODELS[model]
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, shape["vocab_size"], (3, shape["seq_length"]), generator=generator)


def written(model: str, folder: Path) -> dict[str, Any]:
    config = config_of(TrainConfig.parse(settings(model)).model)
    theirs.write(folder, config, theirs.drawn(config))
    return config


def test_a_gpt_2_has_no_rope_to_scale() -> None:
    model = TrainConfig.parse(settings("gpt", shape={"rope_factor": 8.0})).model
    assert "rope_scaling" not in config_of(model)
    check_config(model, config_of(model))  # what one run wrote, another begins from
    scaled = settings("llama", shape={"rope_factor": 8.0})
    assert "rope_scaling" in config_of(TrainConfig.parse(scaled).model)


@pytest.mark.parametrize("model", KINDS)
def test_a_run_begins_from_weights_of_transformers(model: str, tmp_path: Path) -> None:
    written(model, tmp_path / "hf")
    trainer = made(model, initial_load_path=str(tmp_path / "hf"))
    tokens = some_tokens(model)
    expected = theirs.logits(*theirs.read(tmp_path / "hf"), tokens)
    assert_equal(ours(trainer, tokens), expected)


@pytest.mark.parametrize("model", KINDS)
def test_a_run_ends_with_weights_for_transformers(model: str, tmp_path: Path) -> None:
    written(model, tmp_path / "drawn")
    begin = {"initial_load_path": str(tmp_path / "drawn")}
    trainer = made(model, save=str(tmp_path), last_save_in_hf=True, **begin)
    trainer.checkpoints.save(trainer, 1)
    trainer.finish(stopped=True)
    assert not (tmp_path / "hf").exists()
    trainer.finish()
    tokens = some_tokens(model)
    expected = ours(trainer, tokens)
    found = theirs.logits(*theirs.read(tmp_path / "hf"), tokens)
    assert_equal(found, expected)
    same, drawn = read_folder(tmp_path / "hf"), read_folder(tmp_path / "drawn")
    assert same.keys() == drawn.keys()
    assert all(torch.equal(tensor, drawn[name]) for name, tensor in same.items())
    assert main([str(tmp_path / "step-00000001"), str(tmp_path / "again")]) == 0
    for name, tensor in read_folder(tmp_path / "again").items():
        assert torch.equal(tensor, read_folder(tmp_path / "hf")[name])
    left = ["again", "drawn", "hf", "step-00000001"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_the_names_of_a_file_may_lack_their_beginning(tmp_path: Path) -> None:
    """As in the files of GPT-2 on the hub."""
    config = written("gpt", tmp_path / "hf")
    tensors = theirs.drawn(config)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    theirs.write(tmp_path / "bare", config, bare)
    tokens = some_tokens("gpt")
    found = [
        ours(made("gpt", initial_load_path=str(tmp_path / name)), tokens) for name in ("hf", "bare")
    ]
    assert torch.equal(*found)


def test_files_beside_an_index_are_one_model(tmp_path: Path) -> None:
    config = written("llama", tmp_path / "hf")
    tensors = theirs.drawn(config)
    folder = tmp_path / "hf"
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    table = {}
    for number, part in enumerate((names[::2], names[1::2])):
        theirs.write(tmp_path / f"part{number}", config, {name: tensors[name] for name in part})
        (tmp_path / f"part{number}/model.safetensors").rename(folder / f"{number}.safetensors")
        table |= dict.fromkeys(part, f"{number}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    trainer = made("llama", initial_load_path=str(folder))
    tokens = some_tokens("llama")
    expected = theirs.logits(config, {n: t.float().double() for n, t in tensors.items()}, tokens)
    assert_equal(ours(trainer, tokens), expected)


def test_words_that_round_up_the_vocabulary_are_never_the_likeliest(tmp_path: Path) -> None:
    written("gpt", tmp_path / "hf")
    words = MODELS["gpt"]["vocab_size"]
    tokens = some_tokens("gpt")
    trainer = made("gpt", initial_load_path=str(tmp_path / "hf"), shape={"vocab_size": words + 28})
    found = ours(trainer, tokens)
    expected = theirs.logits(*theirs.read(tmp_path / "hf"), tokens)
    assert_equal(found[..., :words], expected)
    assert found.argmax(-1).max() < words
    mean = expected.mean(-1, keepdim=True).expand(-1, -1, 28)
    torch.testing.assert_close(found[..., words:], mean, rtol=0, atol=1e-5)  # of rounded weights


WRONG = {
    "another width": ({"hidden_size": 80}, "hidden_size is 80 there and 40 here"),
    "another norm": ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06 there and 1e-05 here"),
    "other frequencies": ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type is 'llama3' there"),
    "fewer positions": ({"max_position_embeddings": 8}, "embeddings is 8 there and 12"),
    "another kind": ({"model_type": "qwen3"}, "model_type is 'qwen3' there and 'llama' here"),
    "another head": ({"head_dim": 16}, "head_dim is 16 there and 10 here"),
}


@pytest.mark.parametrize("case", WRONG)
def test_weights_of_another_model_are_refused(case: str, tmp_path: Path) -> None:
    changes, says = WRONG[case]
    config = written("llama", tmp_path / "hf") | changes
    (tmp_path / "hf/config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"initial_load_path: .*config\.json") as refused:
        made("llama", initial_load_path=str(tmp_path / "hf"))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("model", "key", "says"),
    [
        ("gpt", "n_inner", "n_inner is 144 there and 20 here"),
        ("llama", "num_key_value_heads", "num_key_value_heads is 4 there and 2 here"),
    ],
)
@pytest.mark.parametrize("null", [True, False])
def test_sizes_that_a_file_leaves_out_are_those_that_transformers_takes(
    model: str, key: str, says: str, null: bool, tmp_path: Path
) -> None:
    config = written(model, tmp_path / "hf")
    del config[key]
    (tmp_path / "hf/config.json").write_text(json.dumps(config | ({key: None} if null else {})))
    shape = {"ffn_hidden_size": 20} if model == "gpt" else {}
    with pytest.raises(ConfigError) as refused:
        made(model, initial_load_path=str(tmp_path / "hf"), shape=shape)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "name", ["transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"]
)
@pytest.mark.parametrize("dim", [0, 1])
def test_rows_and_columns_that_would_be_left_over_are_refused(
    name: str, dim: int, tmp_path: Path
) -> None:
    config = config_of(TrainConfig.parse(settings("gpt")).model)
    tensors = theirs.drawn(config)
    tensors[name] = torch.cat((tensors[name], tensors[name]), dim)
    theirs.write(tmp_path / "hf", config, tensors)
    with pytest.raises(ConfigError, match=rf"{name} with shape .* cannot be made"):
        made("gpt", initial_load_path=str(tmp_path / "hf"))


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    written("llama", tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    whole = file.read_bytes()
    for size in (len(whole) - 1, 100, 4, 0):
        file.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"model\.safetensors: .*cut short"):
            made("llama", initial_load_path=str(tmp_path / "hf"))


def test_a_model_that_transformers_has_no_name_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"those of Llama .* or GPT-2"):
        made("llama", initial_load_path=str(tmp_path), shape={"linear_bias": True})


def test_a_bias_that_chooses_experts_is_not_left_out_of_their_weights(tmp_path: Path) -> None:
    trainer = made("mixtral", save=str(tmp_path))
    trainer.stages[0].get_submodule("blocks.1.mlp.router").bias[1] = 0.5
    trainer.checkpoints.save(trainer, 1)
    trainer.checkpoints.wait()
    assert main([str(tmp_path / "step-00000001"), str(tmp_path / "out")]) == EXIT_INVALID
    assert not (tmp_path / "out").exists()


def test_a_parameter_that_is_no_tensor_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = made("llama", save=str(tmp_path))
    trainer.checkpoints.save(trainer, 1)
    trainer.checkpoints.wait()
    read = SafeReader.read_metadata

    def altered(reader: SafeReader) -> Metadata:
        metadata = read(reader)
        metadata.state_dict_metadata["model.norm.weight"] = BytesStorageMetadata()
        return metadata

    monkeypatch.setattr(SafeReader, "read_metadata", altered)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is no tensor"):
        export(tmp_path / "step-00000001", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@contextlib.contextmanager
def all_in_float64() -> Iterator[None]:
    """What ``transformers`` computes in float32 whatever a model's format is: norms, routers and
    positions."""
    with (
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


def their_logits(folder: Path, tokens: Tensor) -> tuple[Any, Tensor]:
    """The model that ``transformers`` reads, and its logits, in float64."""
    transformers = pytest.importorskip("transformers", reason="needs transformers and safetensors")
    kinds = {"experts_implementation": "eager", "attn_implementation": "eager"}
    it = transformers.AutoModelForCausalLM.from_pretrained(folder, **kinds).double()
    with torch.no_grad(), all_in_float64():
        for module in it.modules():
            if hasattr(module, "inv_freq"):  # made in float32
                module.inv_freq = type(module)(it.config).inv_freq
        return it, it(tokens).logits


@pytest.mark.parametrize("model", KINDS)
def test_transformers_itself_gives_the_same_logits(model: str, tmp_path: Path) -> None:
    """Both ways: it reads ours, and what it then saves is read."""
    written(model, tmp_path / "drawn")
    trainer = made(
        model, initial_load_path=str(tmp_path / "drawn"), save=str(tmp_path), last_save_in_hf=True
    )
    trainer.checkpoints.save(trainer, 1)
    trainer.finish()
    tokens = some_tokens(model)
    it, expected = their_logits(tmp_path / "hf", tokens)
    assert_equal(ours(trainer, tokens), expected)
    for parameter in it.parameters():
        parameter.data = (parameter.data * 3).float()
    it.save_pretrained(tmp_path / "theirs")
    again = made(model, initial_load_path=str(tmp_path / "theirs"))
    assert_equal(ours(again, tokens), their_logits(tmp_path / "theirs", tokens)[1])
