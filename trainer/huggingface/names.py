"""Our parameters as tensors of ``transformers``, for Llama, Qwen 2 and 3, and GPT-2.

Ours stack what is multiplied with the same input: queries, keys and values, and the two
projections of SwiGLU. GPT-2's matrices are transposed there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.model.transformer import NORM_EPS
from trainer.plan.limits import ConfigError
from trainer.plan.model import ModelConfig

_LAYER = re.compile(r"blocks\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True)
class Architecture:
    """One ``model_type``."""

    top: Mapping[str, str]
    """Names outside of all layers; GPT-2 files may leave out ``transformer.``."""
    layers: str  # what the names of layers begin with
    inside: Mapping[str, tuple[str, ...]]  # by our name, theirs in the order that ours stacks
    transposed: bool  # matrices of layers are (inputs, outputs)

    def sources(self, name: str) -> list[str]:
        """Their names for one of our parameters, in the order of its rows."""
        found = _LAYER.fullmatch(name)
        if found is None:
            return [self.top[name]]
        layer, module, part = found.groups()
        return [f"{self.layers}{layer}.{theirs}.{part}" for theirs in self.inside[module]]

    def is_transposed(self, name: str) -> bool:
        """Whether our parameter is theirs the other way round."""
        return self.transposed and name.startswith("blocks.") and "norm" not in name


LLAMA = Architecture(
    top={
        "embedding.weight": "model.embed_tokens.weight",
        "norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    },
    layers="model.layers.",
    inside={
        "attention_norm": ("input_layernorm",),
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.query_norm": ("self_attn.q_norm",),
        "attention.key_norm": ("self_attn.k_norm",),
        "attention.out": ("self_attn.o_proj",),
        "mlp_norm": ("post_attention_layernorm",),
        "mlp.up": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.down": ("mlp.down_proj",),
    },
    transposed=False,
)
GPT2 = Architecture(
    top={
        "embedding.weight": "transformer.wte.weight",
        "positions.weight": "transformer.wpe.weight",
        "norm.weight": "transformer.ln_f.weight",
        "norm.bias": "transformer.ln_f.bias",
    },
    layers="transformer.h.",
    inside={
        "attention_norm": ("ln_1",),
        "attention.qkv": ("attn.c_attn",),
        "attention.out": ("attn.c_proj",),
        "mlp_norm": ("ln_2",),
        "mlp.up": ("mlp.c_fc",),
        "mlp.down": ("mlp.c_proj",),
    },
    transposed=True,
)


def architecture_of(model: ModelConfig) -> Architecture:
    """See ``ModelConfig.model_type``."""
    return GPT2 if model.model_type() == "gpt2" else LLAMA


def config_of(model: ModelConfig) -> dict[str, Any]:
    """The ``config.json`` of a model."""
    if architecture_of(model) is GPT2:
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": model.vocab_size,
            "n_positions": model.seq_length,
            "n_embd": model.hidden_size,
            "n_layer": model.num_layers,
            "n_head": model.num_heads,
            "n_inner": model.ffn_size,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": NORM_EPS,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
        }
    kind = model.model_type()
    found = {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.seq_length,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPS,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": "float32",
    }
    if kind != "qwen2":  # whose biases have no key
        found["attention_bias"] = False
    found |= {"mlp_bias": False} if kind == "llama" else {"use_sliding_window": False}
    rope = rope_of(model)
    return found | ({"rope_scaling": rope} if len(rope) > 1 else {})


def rope_of(model: ModelConfig) -> dict[str, Any]:
    """How positions were stretched, in the keys of ``transformers``."""
    if model.rope_factor == 1:
        return {"rope_type": "default"}
    return {
        "rope_type": "llama3",
        "factor": model.rope_factor,
        "low_freq_factor": model.rope_low_freq_factor,
        "high_freq_factor": model.rope_high_freq_factor,
        "original_max_position_embeddings": model.rope_original_length,
    }


_LLAMA: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}
_OTHERWISE: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "mlp_bias": False},
    "qwen2": {**_LLAMA, "use_sliding_window": False},
    "qwen3": {**_LLAMA, "use_sliding_window": False, "head_dim": 128},
    "gpt2": {
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    },
}
"""Defaults of ``transformers`` for keys that a file lacks."""
_AT_LEAST = ("max_position_embeddings", "n_positions")  # a shorter sequence reads fewer of them
_AT_MOST = ("vocab_size",)  # ours may be rounded up
_NO_MATTER = ("architectures", "torch_dtype", "rope_scaling")


def check_config(model: ModelConfig, given: Mapping[str, Any]) -> None:
    """Check that a ``config.json`` is of this model.

    Raises:
        ConfigError: if it is not; names the keys and both values.
    """
    wanted = config_of(model) | rope_of(model)
    known = {**_OTHERWISE.get(str(given.get("model_type")), {}), **given}
    rope = known.get("rope_parameters") or known.get("rope_scaling") or {}
    known["rope_type"] = rope.get("type", "default")
    known |= rope
    heads = known.get("num_attention_heads")
    if known.get("head_dim") is None and isinstance(heads, int) and heads > 0:
        known["head_dim"] = known.get("hidden_size", 0) // heads
    # Sizes that follow from others where a file does not say, or says null.
    for key, other, factor in (
        ("n_inner", "n_embd", 4),
        ("num_key_value_heads", "num_attention_heads", 1),
    ):
        if known.get(key) is None and isinstance(known.get(other), int):
            known[key] = factor * known[other]
    wrong = []
    for key, ours in wanted.items():
        there = known.get(key)
        if key in _NO_MATTER:
            continue
        if key in _AT_LEAST or key in _AT_MOST:
            less = -1 if key in _AT_MOST else 1
            if isinstance(there, int) and less * ours <= less * there:
                continue
        elif there == ours:
            continue
        wrong.append(f"{key} is {there!r} there and {ours!r} here")
    if wrong:
        raise ConfigError(f"is of another model: {'; '.join(wrong)}")
