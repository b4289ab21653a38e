"""FLOPs against the closed formulas of the papers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from trainer.plan.flops import hardware_flops, model_flops
from trainer.plan.model import ModelConfig


def gpt(**changes: object) -> ModelConfig:
    shape = {
        "num_layers": 24,
        "hidden_size": 2304,
        "num_heads": 24,
        "vocab_size": 51200,
        "seq_length": 2048,
    }
    return ModelConfig.model_validate(shape | changes)


def narayanan(model: ModelConfig, batch: int, factor: int) -> Fraction:
    """Equation 3: factor B s l h^2 (1 + s/6h + V/(factor/6 l h)), in exact arithmetic."""
    s, layers, h, v = model.seq_length, model.num_layers, model.hidden_size, model.vocab_size
    terms = 1 + Fraction(s, 6 * h) + Fraction(v, factor // 6 * layers * h)
    return factor * batch * s * layers * h * h * terms


SHAPES = [
    gpt(),
    gpt(num_layers=96, hidden_size=12288, num_heads=96),
    gpt(num_layers=1, hidden_size=48, num_heads=3, vocab_size=257, seq_length=7),
]


@pytest.mark.parametrize("model", SHAPES)
def test_full_recomputation_costs_equation_3_of_narayanan(model: ModelConfig) -> None:
    assert hardware_flops(model, 512, "full") == narayanan(model, 512, 96)


@pytest.mark.parametrize("model", SHAPES)
def test_model_flops_are_equation_3_without_the_repeated_forward_pass(model: ModelConfig) -> None:
    assert model_flops(model, 512) == narayanan(model, 512, 72)


def test_training_gpt3_takes_the_34_days_that_narayanan_computes() -> None:
    """Section 5.1: 300 B tokens on 1024 GPUs at 140 TFLOP/s each, by the estimate 8 T P / (n X).

    The estimate neglects the attention matrix, which is 2.8 % here.
    """
    model, batch = SHAPES[1], 1536
    steps = 300e9 / (batch * model.seq_length)
    days = hardware_flops(model, batch, "full") * steps / (1024 * 140e12) / 86400
    assert days == pytest.approx(34, rel=0.03)


def test_selective_recomputation_repeats_the_attention_core_only() -> None:
    model = gpt()
    extra = hardware_flops(model, 8, "selective") - model_flops(model, 8)
    assert extra == 4 * 8 * model.num_layers * model.seq_length**2 * model.hidden_size


def test_without_recomputation_hardware_and_model_flops_are_equal() -> None:
    assert hardware_flops(gpt(), 8, "none") == model_flops(gpt(), 8)


def test_grouped_query_attention_saves_only_key_and_value_projections() -> None:
    full, grouped = gpt(), gpt(num_kv_heads=6)
    kv_channels_saved = 2 * (full.hidden_size - 6 * full.head_dim)
    saved = 3 * 2 * full.num_layers * full.seq_length * full.hidden_size * kv_channels_saved
    assert model_flops(full, 1) - model_flops(grouped, 1) == saved


def test_swiglu_costs_three_matrices_of_the_ffn_size() -> None:
    gelu, swiglu = gpt(), gpt(activation="swiglu")
    extra = 3 * 2 * gelu.num_layers * gelu.seq_length * gelu.hidden_size * gelu.ffn_size
    assert model_flops(swiglu, 1) - model_flops(gelu, 1) == extra


def test_flops_per_token_of_a_small_context_approach_six_per_parameter() -> None:
    """6 P per token (Kaplan et al. 2020) holds where attention and embeddings are small."""
    model = gpt(hidden_size=12288, num_heads=96, seq_length=64, vocab_size=64)
    per_token = model_flops(model, 1) / model.seq_length
    assert per_token == pytest.approx(6 * model.num_parameters, rel=0.01)
