"""Architectures of ``transformers``, read into a model's record.

``architectures.yaml`` has a record per ``model_type``; the functions here read the keys of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, RootModel

from foundation.documents import read_document
from foundation.records import Record
from search_spaces.errors import SpaceError
from search_spaces.huggingface.keys import Keys

Shape = dict[str, Any]  # keys of a model's record
MOST_TOKENS = 1_000_000_000
FAMILIES: dict[str, Shape] = {
    "llama": {
        "norm": "rmsnorm", "positions": "rotary", "activation": "swiglu", "linear_bias": False,
    },
    # ALiBi counts as rotary: both have no parameters and no matrix product.
    "gpt": {
        "norm": "layernorm", "positions": "rotary", "activation": "gelu", "linear_bias": True,
    },
}  # fmt: skip


Part = Literal[
    "sparse_layers",
    "latent_attention",
    "embedding_width",
    "key_value_groups",
    "shared_expert",
    "dense_first",
    "further_tokens",
    "interleaved_experts",
    "linear_attention",
    "per_layer_inputs",
]


class Architecture(Record):
    """One ``model_type``.

    Attributes:
        family: of GPT or Llama: norms, activation, biases.
        defaults: of keys that a file may leave out.
        names: other names of a key in its files.
        positions: unless the family's.
        biases: flags of a file; linear layers have biases if all of them are true.
        windows: layers with a sliding window, where a file has one and does not list them.
        experts: key of the size of an expert; empty: a dense model.
        parts: further properties, of ``_PARTS``.
        sets: what else its models' records say.
    """

    family: Literal["llama", "gpt"]
    defaults: dict[str, Any]
    names: dict[str, str] = Field(default={})
    positions: Literal["learned"] | None = None
    biases: list[str] = Field(default=[])
    windows: Literal["none", "all", "later", "alternating", "three_of_four", "most"] = "none"
    experts: str = ""
    parts: list[Part] = Field(default=[])
    sets: dict[str, Any] = Field(default={})

    def shape(self, keys: Keys) -> Shape:
        """The model that a file's keys describe; raises SpaceError where it has no record."""
        shape = {**_sizes(keys), **FAMILIES[self.family], **self.sets}
        shape["positions"] = self.positions or shape["positions"]
        if self.biases:
            shape["linear_bias"] = all(keys.flag(name) for name in self.biases)
        if self.windows != "none":
            shape |= _windows(keys, self.windows, shape["num_layers"])
        if self.experts:
            shape |= {
                "num_experts": keys.count("num_experts"),
                "experts_per_token": keys.count("num_experts_per_tok"),
                "expert_ffn_hidden_size": keys.count(self.experts),
            }
        for part in self.parts:
            shape |= _PARTS[part](keys, shape)
        return shape


@cache
def architectures() -> Mapping[str, Architecture]:
    """Known architectures by ``model_type``."""
    document = read_document(Path(__file__).with_suffix(".yaml"), SpaceError)
    return RootModel[dict[str, Architecture]].model_validate(document.root.plain()).root


def _sizes(keys: Keys) -> Shape:
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


def _windows(keys: Keys, which: str, layers: int) -> Shape:
    """Windowed layers: as the file lists them, or as the architecture has them."""
    if which == "later":  # Qwen: from max_window_layers on, where windows are used
        if not keys.flag("use_sliding_window"):
            return {}
        number = max(0, layers - (keys.some("max_window_layers", 0) or 0))
    elif which == "alternating":  # Gemma 2 and gpt-oss: every second layer, starting with the first
        number = (layers + 1) // 2
    elif which == "three_of_four":  # OLMo 3, Cohere 2
        number = layers - layers // 4
    elif which == "most":  # Gemma 3: all but every sixth
        every = keys.some("sliding_window_pattern") or keys.count("_sliding_window_pattern")
        number = layers - layers // every
    else:
        number = layers
    size = keys.some("sliding_window")
    kinds = keys.words("layer_types")
    if kinds is not None:
        number = kinds.count("sliding_attention")
    return {"windowed_layers": number, "window_size": size} if size and number else {}


def _sparse_layers(keys: Keys, shape: Shape) -> Shape:
    """Qwen 3 MoE: some layers are dense, namely listed ones, or all but every n-th."""
    every = keys.count("decoder_sparse_step")
    named = keys.items("mlp_only_layers", "layers")
    mixed = [i for i in range(shape["num_layers"]) if (i + 1) % every == 0 and i not in named]
    return {"dense_layers": shape["num_layers"] - len(mixed)}


def _latent_attention(keys: Keys, shape: Shape) -> Shape:
    """DeepSeek V3: latent attention, shared experts, and dense first layers."""
    shape.pop("head_size", None)  # it is that of the rotary part
    return {
        **_dense_first(keys, shape),
        "q_lora_rank": keys.some("q_lora_rank", 0) or 0,
        "kv_lora_rank": keys.count("kv_lora_rank"),
        "qk_nope_head_dim": keys.count("qk_nope_head_dim"),
        "qk_rope_head_dim": keys.count("qk_rope_head_dim"),
        "v_head_dim": keys.count("v_head_dim"),
    }


def _dense_first(keys: Keys, shape: Shape) -> Shape:
    """DeepSeek, GLM 4.5: shared experts, and dense first layers."""
    shared = keys.some("n_shared_experts", 0) or 0
    return {
        "shared_ffn_hidden_size": shared * shape["expert_ffn_hidden_size"],
        "dense_layers": min(shape["num_layers"], keys.some("first_k_dense_replace", 0) or 0),
    }


def _shared_expert(keys: Keys, shape: Shape) -> Shape:
    """Qwen 2 MoE: one expert that all tokens take; its gate, a row, is left out."""
    return {"shared_ffn_hidden_size": keys.some("shared_expert_intermediate_size", 0) or 0}


def _interleaved_experts(keys: Keys, shape: Shape) -> Shape:
    """Llama 4: every n-th layer has experts, or those that are listed."""
    every, named = keys.count("interleave_moe_layer_step"), keys.items("moe_layers", "layers")
    mixed = len(named) or shape["num_layers"] // every
    return {
        "shared_ffn_hidden_size": shape["expert_ffn_hidden_size"],
        "dense_layers": shape["num_layers"] - mixed,
    }


def _further_tokens(keys: Keys, shape: Shape) -> Shape:
    """GLM 4.5: a layer for each further token, with both tables and a product of its own."""
    further = keys.some("num_nextn_predict_layers", 0) or 0
    h, f, ups = shape["hidden_size"], shape["expert_ffn_hidden_size"], 3
    heads = shape["num_heads"] + (shape["num_kv_heads"] or shape["num_heads"])
    attention = 2 * heads * h * shape.get("head_size", h // shape["num_heads"])
    experts = ups * h * (f * shape["num_experts"] + shape["shared_ffn_hidden_size"])
    one = attention + experts + h * (shape["num_experts"] + 2 * h + 2 * shape["vocab_size"])
    return {"further_parameters": further * one} if further else {}


def _linear_attention(keys: Keys, shape: Shape) -> Shape:
    """Qwen 3 Next: three of four layers have linear attention, the others a gate of the queries; a
    layer for a further token is in the files only. What a plain layer lacks of them is counted, and
    linear attention priced as a window of a chunk of it.
    """
    h, q = shape["hidden_size"], shape["num_heads"] * keys.count("head_dim")
    kv = keys.count("num_key_value_heads") * keys.count("head_dim")
    plain = 2 * h * (q + kv)
    heads = keys.count("linear_num_value_heads")
    key = keys.count("linear_num_key_heads") * keys.count("linear_key_head_dim")
    value = heads * keys.count("linear_value_head_dim")
    linear = h * (2 * key + 3 * value + 2 * heads)
    linear += keys.count("linear_conv_kernel_dim") * (2 * key + value)
    every = keys.count("full_attention_interval")
    full = shape["num_layers"] // every
    widths = shape["expert_ffn_hidden_size"] * shape["num_experts"]
    experts = h * (3 * (widths + shape["shared_ffn_hidden_size"]) + shape["num_experts"])
    further = plain + h * q + experts + 2 * h * h
    beside = full * h * q + (shape["num_layers"] - full) * (linear - plain)
    return {
        "windowed_layers": shape["num_layers"] - full,
        "window_size": 64,
        "further_parameters": beside + further,
    }


def _per_layer_inputs(keys: Keys, shape: Shape) -> Shape:
    """Gemma 3n: a table of inputs for each layer and what leads to them, Laurel, AltUp."""
    h, layers = shape["hidden_size"], shape["num_layers"]
    each = keys.count("hidden_size_per_layer_input")
    table = keys.count("vocab_size_per_layer_input", most=MOST_TOKENS) * each * layers
    copies = keys.count("altup_num_inputs")
    small = layers * h * (3 * each + 2 * keys.count("laurel_rank") + copies)
    return {"further_parameters": table + small + 2 * (copies - 1) * h * h}


def tower_parameters(keys: Keys, width: int) -> int:
    """Parameters of what reads pictures: its blocks, and the products to the layers' width.

    Patches and positions are left out, a hundredth of it, and sizes that a file does not state.
    Gemma 3n's, with what it hears by, are of one size.
    """
    if keys.given("model_type") == "gemma3n_vision":
        return 983_800_000
    h, f = keys.some("hidden_size") or 0, keys.some("intermediate_size") or 0
    ups = 3 if keys.given("model_type") == "pixtral" else 2  # gated
    depth = keys.some("depth") or keys.some("num_hidden_layers") or 0
    merged = (keys.some("spatial_merge_size") or 1) ** 2 * h
    joints = 1 + len(keys.items("deepstack_visual_indexes", "layers"))
    return depth * (4 * h * h + ups * h * f) + joints * merged * (merged + width)


def _embedding_width(keys: Keys, shape: Shape) -> Shape:
    """OPT: refuse an embedding of another width than the layers."""
    width = keys.some("word_embed_proj_dim")
    if width not in (None, shape["hidden_size"]):
        raise keys.error(
            "word_embed_proj_dim",
            f"found {width}, accepted hidden_size, {shape['hidden_size']}: a record has no "
            "embedding of another width; write it as a plain model (*.yaml)",
        )
    return {}


def _key_value_groups(keys: Keys, shape: Shape) -> Shape:
    """Falcon: one group of keys and values (the first 7B), or as many as the file states."""
    if keys.flag("new_decoder_architecture"):
        return {"num_kv_heads": keys.some("num_kv_heads")}
    return {"num_kv_heads": 1 if keys.flag("multi_query") else None}


_PARTS: dict[str, Callable[[Keys, Shape], Shape]] = {
    "sparse_layers": _sparse_layers,
    "latent_attention": _latent_attention,
    "embedding_width": _embedding_width,
    "key_value_groups": _key_value_groups,
    "shared_expert": _shared_expert,
    "dense_first": _dense_first,
    "further_tokens": _further_tokens,
    "interleaved_experts": _interleaved_experts,
    "linear_attention": _linear_attention,
    "per_layer_inputs": _per_layer_inputs,
}
