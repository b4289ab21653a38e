"""Architectures of ``transformers``, read into a model's record.

A row has the defaults of the architecture's configuration class, for what a file leaves out
(``transformers`` 5.23; none of them changed since the architecture was added, names apart), and
the function that reads its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from foundation.documents import as_written
from search_spaces.huggingface.keys import Keys

Shape = dict[str, Any]  # keys of a model's record
MOST_TOKENS = 1_000_000_000
LLAMA = {"norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "linear_bias": False}
# ALiBi counts as rotary: both have no parameters and no matrix product.
GPT = {"norm": "layernorm", "positions": "rotary", "activation": "gelu", "linear_bias": True}


@dataclass(frozen=True)
class Architecture:
    """One ``model_type``.

    Attributes:
        shape: reads a file's keys.
        defaults: of keys that a file may leave out.
        names: what its files may call a key instead.
    """

    shape: Callable[[Keys], Shape]
    defaults: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)


def _sizes(
    hidden: int,
    ffn: int | None,
    layers: int,
    heads: int,
    vocabulary: int,
    longest: int,
    kv_heads: int | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Defaults by the usual keys; ``kv_heads``: those of the queries where there is none."""
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": longest,
        "num_key_value_heads": kv_heads,
        **others,
    }


def _usual(keys: Keys) -> Shape:
    """Sizes under the usual keys."""
    shape: Shape = {
        "num_layers": keys.count("num_hidden_layers", most=100_000),
        "hidden_size": keys.count("hidden_size"),
        "num_heads": keys.count("num_attention_heads"),
        "num_kv_heads": keys.some("num_key_value_heads"),
        "ffn_hidden_size": keys.some("intermediate_size"),
        "vocab_size": keys.count("vocab_size", 2, MOST_TOKENS),
        "tied_embeddings": keys.flag("tie_word_embeddings"),
    }
    size = keys.some("head_dim")
    if size is not None and size * shape["num_heads"] != shape["hidden_size"]:
        shape["head_size"] = size
    return shape


def _llama(keys: Keys) -> Shape:
    biases = keys.flag("attention_bias") and keys.flag("mlp_bias")
    return {**_usual(keys), **LLAMA, "linear_bias": biases}


def _windowed(keys: Keys) -> Shape:
    """Mistral: every layer has the window, if there is one."""
    shape = {**_usual(keys), **LLAMA}
    return {**shape, **_windows(keys, shape["num_layers"])}


def _qwen(keys: Keys) -> Shape:
    """Qwen: layers from ``max_window_layers`` on have the window, where it is used.

    Qwen2's biases of queries, keys and values are left out: one in 50,000 of the parameters.
    """
    shape = {**_usual(keys), **LLAMA}
    if not keys.flag("use_sliding_window"):
        return shape
    later = shape["num_layers"] - (keys.some("max_window_layers", 0) or 0)
    return {**shape, **_windows(keys, max(0, later))}


def _alternating(keys: Keys) -> Shape:
    """Gemma 2 and gpt-oss: every second layer has the window, starting with the first."""
    shape = {**_usual(keys), **LLAMA}
    return {**shape, **_windows(keys, (shape["num_layers"] + 1) // 2)}


def _gemma3(keys: Keys) -> Shape:
    """Gemma 3: all layers have the window except every sixth."""
    shape = {**_usual(keys), **LLAMA}
    layers = shape["num_layers"]
    every = keys.some("sliding_window_pattern") or keys.count("_sliding_window_pattern")
    return {**shape, **_windows(keys, layers - layers // every)}


def _windows(keys: Keys, layers: int) -> Shape:
    """Windows of so many layers, unless the file lists the kind of each layer."""
    size = keys.some("sliding_window")
    kinds = keys.words("layer_types")
    if kinds is not None:
        layers = kinds.count("sliding_attention")
    return {"windowed_layers": layers, "window_size": size} if size and layers else {}


def _gpt2(keys: Keys) -> Shape:
    return {**_usual(keys), **GPT, "positions": "learned"}


def _gpt(keys: Keys) -> Shape:
    """GPT-NeoX and BLOOM."""
    return {**_usual(keys), **GPT}


def _opt(keys: Keys) -> Shape:
    shape = {**_usual(keys), **GPT, "positions": "learned"}
    width = keys.some("word_embed_proj_dim")
    if width not in (None, shape["hidden_size"]):
        raise keys.error(
            "word_embed_proj_dim",
            f"found {width}, accepted hidden_size, {shape['hidden_size']}: a record has no "
            "embedding of another width; write it as a plain model (*.yaml)",
        )
    return {**shape, "linear_bias": keys.flag("enable_bias")}


def _falcon(keys: Keys) -> Shape:
    """Falcon: one group of keys and values (the first 7B), or as many as the file states."""
    shape = {**_usual(keys), **GPT, "linear_bias": keys.flag("bias")}
    if keys.flag("new_decoder_architecture"):
        groups = keys.some("num_kv_heads")
    else:
        groups = 1 if keys.flag("multi_query") else None
    return {**shape, "num_kv_heads": groups}


def _starcoder2(keys: Keys) -> Shape:
    shape = {**_usual(keys), **GPT, "linear_bias": keys.flag("use_bias")}
    return {**shape, **_windows(keys, shape["num_layers"])}


def _mixture(keys: Keys, ffn_size: str = "intermediate_size") -> Shape:
    """Fields of a mixture of experts."""
    return {
        "num_experts": keys.count("num_experts"),
        "experts_per_token": keys.count("num_experts_per_tok"),
        "expert_ffn_hidden_size": keys.count(ffn_size),
    }


def _mixtral(keys: Keys) -> Shape:
    return {**_windowed(keys), **_mixture(keys)}


def _qwen3_moe(keys: Keys) -> Shape:
    """Qwen 3 MoE: some layers are dense, namely listed ones, or all but every n-th."""
    shape = {**_qwen(keys), **_mixture(keys, "moe_intermediate_size")}
    every = keys.count("decoder_sparse_step")
    named = keys.given("mlp_only_layers") or []
    if not isinstance(named, list):
        found = f"found {as_written(named)}"
        raise keys.error("mlp_only_layers", f"{found}, accepted a list of layers")
    mixed = [i for i in range(shape["num_layers"]) if (i + 1) % every == 0 and i not in named]
    return {**shape, "dense_layers": shape["num_layers"] - len(mixed)}


def _gpt_oss(keys: Keys) -> Shape:
    return {**_alternating(keys), **_mixture(keys)}


def _deepseek_v3(keys: Keys) -> Shape:
    """DeepSeek V3: latent attention; the first layers are dense.

    Multi-token prediction is left out, as in ``transformers``.
    """
    shape = {**_usual(keys), **LLAMA, **_mixture(keys, "moe_intermediate_size")}
    shape.pop("head_size", None)  # it is that of the rotary part; see below
    shared = keys.some("n_shared_experts", 0) or 0
    return {
        **shape,
        "shared_ffn_hidden_size": shared * shape["expert_ffn_hidden_size"],
        "dense_layers": min(shape["num_layers"], keys.some("first_k_dense_replace", 0) or 0),
        "q_lora_rank": keys.some("q_lora_rank", 0) or 0,
        "kv_lora_rank": keys.count("kv_lora_rank"),
        "qk_nope_head_dim": keys.count("qk_nope_head_dim"),
        "qk_rope_head_dim": keys.count("qk_rope_head_dim"),
        "v_head_dim": keys.count("v_head_dim"),
    }


_QWEN_LENGTH = 32768
_TIED = {"tie_word_embeddings": True}
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(_llama, _sizes(4096, 11008, 32, 32, 32000, 2048)),
    "granite": Architecture(_llama, _sizes(4096, 11008, 32, 32, 32000, 2048)),
    "olmo2": Architecture(_llama, _sizes(4096, 11008, 32, 32, 50304, 2048)),
    "mistral": Architecture(
        _windowed, _sizes(4096, 14336, 32, 32, 32000, 131072, 8, sliding_window=4096)
    ),
    "phi3": Architecture(_windowed, _sizes(3072, 8192, 32, 32, 32064, 4096)),
    "qwen2": Architecture(
        _qwen, _sizes(4096, 22016, 32, 32, 151936, _QWEN_LENGTH, 32, max_window_layers=28)
    ),
    "qwen3": Architecture(
        _qwen,
        _sizes(4096, 22016, 32, 32, 151936, _QWEN_LENGTH, 32, head_dim=128, max_window_layers=28),
    ),
    # Gated units with GELU in place of SiLU: the same matrices.
    "gemma": Architecture(
        _llama, _sizes(3072, 24576, 28, 16, 256000, 8192, 16, head_dim=256, **_TIED)
    ),
    "gemma2": Architecture(
        _alternating,
        _sizes(2304, 9216, 26, 8, 256000, 8192, 4, head_dim=256, sliding_window=4096, **_TIED),
    ),
    "gemma3_text": Architecture(
        _gemma3,
        _sizes(2304, 9216, 26, 8, 262208, 131072, 4, head_dim=256, sliding_window=4096, **_TIED)
        | {"_sliding_window_pattern": 6},
    ),
    "starcoder2": Architecture(
        _starcoder2, _sizes(3072, 12288, 30, 24, 49152, 4096, 2, use_bias=True, **_TIED)
    ),
    "gpt2": Architecture(
        _gpt2,
        _sizes(768, None, 12, 12, 50257, 1024, **_TIED),
        {
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
    ),
    "gpt_neox": Architecture(_gpt, _sizes(6144, 24576, 44, 64, 50432, 2048)),
    "opt": Architecture(
        _opt,
        _sizes(768, 3072, 12, 12, 50272, 2048, enable_bias=True, **_TIED),
        {"intermediate_size": "ffn_dim"},
    ),
    "bloom": Architecture(
        _gpt,
        _sizes(64, None, 2, 8, 250880, 2048, **_TIED),
        {
            "hidden_size": "n_embed",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "seq_length",
        },
    ),
    "falcon": Architecture(
        _falcon,
        _sizes(4544, None, 32, 71, 65024, 2048, multi_query=True, **_TIED),
        {"intermediate_size": "ffn_hidden_size"},
    ),
    "mixtral": Architecture(
        _mixtral,
        _sizes(4096, 14336, 32, 32, 32000, 131072, 8, num_experts=8, num_experts_per_tok=2),
        {"num_experts": "num_local_experts"},
    ),
    "qwen3_moe": Architecture(
        _qwen3_moe,
        _sizes(2048, 6144, 24, 32, 151936, _QWEN_LENGTH, 4, moe_intermediate_size=768)
        | {"num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1},
        {"num_experts": "num_local_experts"},
    ),
    "gpt_oss": Architecture(
        _gpt_oss,
        _sizes(2880, 2880, 36, 64, 201088, 131072, 8, head_dim=64, sliding_window=128)
        | {"num_experts": 128, "num_experts_per_tok": 4},
        {"num_experts": "num_local_experts"},
    ),
    "deepseek_v3": Architecture(
        _deepseek_v3,
        _sizes(7168, 18432, 61, 128, 129280, 4096, 128, moe_intermediate_size=2048)
        | {"num_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1}
        | {"first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512}
        | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
        {"num_experts": "n_routed_experts"},
    ),
}
ARCHITECTURES["gemma3"] = ARCHITECTURES["gemma3_text"]
"""Gemma 3 that reads pictures has the language model's keys under ``text_config``."""
