"""Small models, whole, with their first weights."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.model.initialize import initialize
from trainer.model.transformer import LayerOptions, Stage
from trainer.plan.model import ModelConfig

GPT = ModelConfig(num_layers=4, hidden_size=24, num_heads=6, vocab_size=40, seq_length=12)


LLAMA = ModelConfig(
    num_layers=4,
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    ffn_hidden_size=64,
    vocab_size=40,
    seq_length=12,
    norm="rmsnorm",
    positions="rotary",
    activation="swiglu",
    linear_bias=False,
    tied_embeddings=False,
)


LATENT = LLAMA.model_copy(
    update={
        "num_kv_heads": None, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4, "v_head_dim": 10,
    }
)  # fmt: skip


MODELS = [pytest.param(GPT, id="gpt"), pytest.param(LLAMA, id="llama")]


def whole(model: ModelConfig, index: int = 0, num_stages: int = 1, **options: Any) -> Stage:
    """A stage of the model, by default all of it; ``options`` as ``LayerOptions``."""
    stage = Stage(model, index, num_stages, LayerOptions(**options))
    initialize(stage, "", model, seed=3)
    return stage
