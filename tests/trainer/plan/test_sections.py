"""Settings of the data that cannot be together."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

MODEL = {"num_layers": 1, "hidden_size": 8, "num_heads": 1, "vocab_size": 8, "seq_length": 8}
WINDOWS = {**MODEL, "num_layers": 4, "windowed_layers": 2, "window_size": 4}
LLAMA = {"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "linear_bias": False}
EXPERTS = {"num_experts": 2, "experts_per_token": 1, "expert_ffn_hidden_size": 8}
MIXTURE = {**MODEL, **LLAMA, **EXPERTS}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"documents": {}, "cp": 2}, "documents with cp 2: ring attention sees whole samples; set"),
        ({"documents": {}, "model": WINDOWS}, "set documents' reset_attention_mask: false"),
        ({"model": {**WINDOWS, "windowed_layers": 1}}, "every n-th layer must have full attention"),
        ({"documents": {}, "engine": "deepspeed"}, "it has no document boundaries here"),
        ({"loss_mask": "x", "engine": "deepspeed"}, "loss_mask x: .*; remove loss_mask"),
        ({"validation": {"data": "x"}, "engine": "deepspeed"}, "remove validation"),
        ({"async_save": True}, "async_save needs a folder: set save"),
        ({"last_save_in_hf": True}, "last_save_in_hf needs a folder: set save"),
        (
            {"last_save_in_hf": True, "save": "x", "model": {**MODEL, "activation": "swiglu"}},
            "activation swiglu, .* Hugging Face weights are those of Llama",
        ),
        (
            {"last_save_in_hf": True, "save": "x", "model": {**MIXTURE, "dense_layers": 1}},
            "dense_layers 1, num_experts 2: Hugging Face weights are those of",
        ),
        (
            {"last_save_in_hf": True, "save": "x", "model": MIXTURE}
            | {"moe_router_bias_update_rate": 0.1},
            "last_save_in_hf beside moe_router_bias_update_rate 0.1: .* set it to 0",
        ),
        ({"initial_load_path": "x", "engine": "deepspeed"}, "here; remove initial_load_path"),
        ({"time_communication": True, "engine": "deepspeed"}, "set time_communication: false"),
    ],
)
def test_what_cannot_be_together_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TrainConfig.parse({"model": MODEL, "data": "x", **settings})


def test_masking_the_ends_of_documents_alone_works_with_split_sequences() -> None:
    masked = {"reset_attention_mask": False, "reset_position_ids": False}
    config = TrainConfig.parse({"model": MODEL, "data": "x", "cp": 2, "documents": masked})
    assert config.masks_loss and not config.splits_samples


def test_windows_do_not_go_round_a_ring() -> None:
    config = TrainConfig.parse({"model": WINDOWS, "data": "x", "cp": 2})
    with pytest.raises(ConfigError, match=r"windowed_layers 2 beside cp 2.* set cp: 1"):
        config.check(2)
