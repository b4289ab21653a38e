"""Shapes beyond the built-in trainer's: mixtures of experts, latent attention, windows."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from search_spaces import SpaceError, load_space
from search_spaces.language.model import ModelShape
from search_spaces.language.schema import ModelFile
from search_spaces.shipped import read_named
from trainer.plan.flops import model_flops
from trainer.plan.jobs import jobs, joined
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import model_weights


def shape(name: str) -> ModelConfig:
    return read_named(ModelFile, "model", name).config()


def text(model: Any, **trainer: Any) -> str:
    return yaml.safe_dump(
        {
            "version": 1,
            "model": model,
            "cluster": "dgx_h100",
            "trainer": trainer or {"command": ["train", "--tp={tp}"]},
            "parameters": {"tp": [1, 2], "mbs": 1, "gas": 8},
            "objective": {"maximize": "tokens_per_second"},
        }
    )


def active_parameters(model: ModelConfig) -> int:
    """Parameters that one token meets: only those experts that it takes."""
    return model.num_parameters - int(model_weights(model) - model_weights(model, active=True))


@pytest.mark.parametrize(
    ("name", "whole", "active"),
    [
        ("mixtral_8x7b", 46.7, 12.9),  # Jiang et al. 2024
        ("deepseek_v3", 671, 37),  # DeepSeek-AI 2024: "37B", of 37.6
        ("qwen3_235b_a22b", 235, 22),  # Qwen Team 2025
        ("qwen3_30b_a3b", 30.5, 3.3),
        ("gpt_oss_120b", 116.8, 5.1),  # OpenAI 2025, whose 5.1 leaves the embedding out
    ],
)
def test_parameters_are_as_many_as_published(name: str, whole: float, active: float) -> None:
    model = shape(name)
    assert model.num_parameters / 1e9 == pytest.approx(whole, rel=2e-3)
    left_out = model.vocab_size * model.hidden_size if name == "gpt_oss_120b" else 0
    assert (active_parameters(model) - left_out) / 1e9 == pytest.approx(active, rel=2e-2)


def test_columns_of_several_models_count_as_each_alone() -> None:
    # Rows with and without experts and latent attention side by side.
    names = ["llama_8b", "deepseek_v3", "qwen3_30b_a3b", "gpt_oss_120b"]
    models = [shape(name) for name in names]
    alone = [jobs({"tp": 1, "pp": 1, "dp": 1, "mbs": 1, "gas": 1}, model) for model in models]
    together = joined(alone)
    for row, model in enumerate(models):
        assert model_weights(together.model)[row] == model_weights(model)
        assert model_flops(together.model, 8)[row] == pytest.approx(
            model_flops(model, 8), rel=1e-12
        )


def test_a_token_costs_six_operations_for_each_active_parameter() -> None:
    model = shape("deepseek_v3")
    products = active_parameters(model) - model.vocab_size * model.hidden_size
    attention = 12 * model.num_layers * model.seq_length**2 * 128 * (128 + 64 + 128) / 2
    expected = 6 * products * model.seq_length + attention
    assert model_flops(model, 1) == pytest.approx(expected, rel=1e-3)


def test_a_window_counts_only_the_keys_within_it() -> None:
    model = shape("gpt_oss_120b")
    assert model.attended == (4096 + 2 * 128) // 2
    short = ModelShape(**{**model.model_dump(), "seq_length": 128})
    assert short.attended == 128


def test_the_built_in_trainer_refuses_what_it_does_not_train(tmp_path: Any) -> None:
    key = "capacity_factor"
    name = shape("tiny_moe").model_dump(exclude_none=True) | {key: 1.5}
    path = tmp_path / "space.yaml"
    path.write_text(text(name, builtin={"data": "generate"}))
    with pytest.raises(SpaceError, match="which the built-in trainer does not train") as raised:
        load_space(path)
    assert key in str(raised.value)
    path.write_text(text(name))
    space = load_space(path)
    assert isinstance(space.model, ModelShape)
    frozen = tmp_path / "frozen.yaml"
    frozen.write_text(space.frozen())
    assert load_space(frozen).model == space.model


@pytest.mark.parametrize("name", ["llama_70b", "mixtral_8x7b", "gpt_oss_120b", "deepseek_v3"])
def test_a_model_that_it_trains_is_the_trainers_own_record(name: str) -> None:
    assert type(shape(name)) is ModelConfig


MIXTURE = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_heads": 4,
    "vocab_size": 100,
    "seq_length": 32,
    "num_experts": 4,
    "experts_per_token": 2,
    "expert_ffn_hidden_size": 32,
}


LATENT = {
    "positions": "rotary", "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"experts_per_token": 5}, "experts_per_token 5 is more than num_experts 4"),
        ({"expert_ffn_hidden_size": None}, "expert_ffn_hidden_size must be, too"),
        ({"num_experts": 0}, "without num_experts"),
        ({"dense_layers": 5}, "dense_layers 5 is more than num_layers 4"),
        ({"topk_group": 2}, "topk_group 2 is more than n_group 1"),
        ({"rope_mscale": 0.5}, "rope_mscale 0.5 without rope_type yarn"),
        ({"rope_type": "yarn"}, "without latent attention: set kv_lora_rank"),
        ({"n_group": 3}, "groups need as many experts each, two or more"),
        ({"n_group": 4, "topk_group": 2}, "groups need as many experts each, two or more"),
        ({"shared_expert_gate": True}, "shared_expert_gate without shared_ffn_hidden_size"),
        ({"qk_norm_all_heads": True}, "qk_norm_all_heads without qk_norm"),
        ({"kv_lora_rank": 8}, "qk_nope_head_dim, qk_rope_head_dim, v_head_dim must be, too"),
        ({"window_size": 8}, "window_size without windowed_layers"),
        ({"num_heads": 5}, "set head_size"),
    ],
)
def test_a_shape_that_contradicts_itself_is_refused(changes: Any, said: str) -> None:
    given = {key: value for key, value in {**MIXTURE, **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=said):
        ModelShape(**given)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("router_score", "sigmoid"), ("norm_topk_prob", False), ("routed_scaling_factor", 2.0),
        ("n_group", 2), ("topk_group", 2),
    ],
)  # fmt: skip
def test_a_router_without_experts_is_refused(key: str, value: Any) -> None:
    dense = {name: each for name, each in MIXTURE.items() if "expert" not in name}
    ModelShape(**dense)
    with pytest.raises(ValueError, match=f"{key} without num_experts"):
        ModelShape(**dense, **{key: value})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"qk_norm": True}, "qk_norm"),
        ({"v_head_dim": 13}, "a v_head_dim above keys' size"),
        ({"num_kv_heads": 2}, "num_kv_heads"),
        ({"positions": "learned"}, "learned positions"),
    ],
)
def test_only_the_built_in_trainer_refuses_more_beside_latent_attention(
    changes: Any, said: str
) -> None:
    given = {**MIXTURE, **LATENT, **changes}
    assert ModelShape(**given).beyond_trainer == [said]
    with pytest.raises(ValueError, match=f"{said} beside kv_lora_rank: remove it"):
        ModelConfig(**given)
