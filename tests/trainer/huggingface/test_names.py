"""What ``architectures.yaml`` says of ``transformers``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from support.checkpoint_cases import MODELS
from trainer.huggingface.names import architecture_of, architectures, read_architectures
from trainer.model.transformer import Stage
from trainer.plan.model import ModelConfig

STATED = sorted(architectures())


def models_of(kind: str) -> list[ModelConfig]:
    models = [ModelConfig.model_validate(MODELS[name]) for name in MODELS if name != "moe"]
    return [model for model in models if model.model_type() == kind]


@pytest.mark.parametrize("kind", [kind for kind in STATED if kind != "kimi_k2"])
def test_a_record_has_the_names_of_its_own_models_and_no_others(kind: str) -> None:
    used: set[str] = set()
    for model in models_of(kind):
        architecture = architecture_of(model)
        with torch.device("meta"):
            parameters = [name for name, _ in Stage(model).named_parameters()]
        assert all(architecture.sources(name) or "router.bias" in name for name in parameters)
        found = (re.fullmatch(r"blocks\.\d+\.(.+)\.\w+", name) for name in parameters)
        used |= {match[1] for match in found if match}
    assert used == {*architectures()[kind].inside}


BEGINNING = """
first:
  class_name: FirstForCausalLM
  top: {norm.weight: model.norm.weight}
  layers: model.layers.
  inside: {mlp.up: [mlp.gate_proj, mlp.up_proj], mlp.down: [mlp.down_proj]}
  fields: {hidden_size: hidden_size, head_dim: head_dim}
  fixed: {hidden_act: silu}
  defaults: {head_dim: 64}
"""
SECOND = """
second:
  like: first
  class_name: SecondForCausalLM
  inside: {mlp.up: null, mlp.router: [mlp.gate]}
  fields: {head_dim: null}
  fixed: {}
"""


def read(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "architectures.yaml"
    path.write_text(text)
    return read_architectures(path)


def test_an_architecture_like_another_has_its_names_and_states_its_own_defaults(
    tmp_path: Path,
) -> None:
    found = read(tmp_path, BEGINNING + SECOND + "  defaults: {hidden_size: 8}\n")["second"]
    assert found.layers == "model.layers." and found.top == {"norm.weight": "model.norm.weight"}
    assert found.inside == {"mlp.down": ["mlp.down_proj"], "mlp.router": ["mlp.gate"]}
    assert (found.fields, found.defaults) == ({"hidden_size": "hidden_size"}, {"hidden_size": 8})
    with pytest.raises(TypeError, match="defaults"):
        read(tmp_path, BEGINNING + SECOND)


def test_an_architecture_is_like_none_that_is_misspelt_or_comes_later(tmp_path: Path) -> None:
    defaults = "  defaults: {}\n"
    with pytest.raises(KeyError, match="frist"):
        read(tmp_path, BEGINNING + SECOND.replace("like: first", "like: frist") + defaults)
    with pytest.raises(KeyError, match="first"):
        read(tmp_path, SECOND + defaults + BEGINNING)


# Of the authors' own code, where that of transformers has no such key or says None.
THEIRS_ALONE = {
    "qwen2": {"attention_bias"},
    "qwen2_moe": {"mlp_only_layers"},
    "qwen3_moe": {"mlp_only_layers"},
    "deepseek_v2": {"scoring_func", "moe_layer_freq", "n_group", "topk_group"},
    "deepseek_v3": {"scoring_func", "moe_layer_freq", "topk_method"},
}


@pytest.mark.parametrize("kind", STATED)
def test_keys_and_defaults_are_those_of_transformers_class(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip("transformers has it under another name, or is of before it")
    config = transformers.AutoConfig.for_model(kind)
    stated = inspect.signature(type(config)).parameters
    there = {name: parameter.default for name, parameter in stated.items()}
    if rope := getattr(config, "rope_parameters", None):
        there["rope_theta"] = rope["rope_theta"]
    ours = architectures()[kind]
    for key, value in ours.defaults.items():
        if key not in THEIRS_ALONE.get(kind, ()):
            assert there[key] == value, key
    # Qwen 2 and 3 MoE have no such key in their class, whose attention reads it from a file.
    known = {*there, "head_dim"}
    assert [key for key in ours.fields if key not in known and not hasattr(config, key)] == []
