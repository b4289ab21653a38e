"""Architectures of ``transformers``, read into a model's record.

``architectures.yaml`` has a record per ``model_type``, and ``parts.yaml`` formulas for further
properties; the functions here read the keys of a model's file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, RootModel

from foundation.documents import read_document
from foundation.records import Record
from search_spaces.errors import SpaceError
from search_spaces.huggingface.keys import Keys
from search_spaces.language.schema import ModelFile
from trainer.plan.rules.expression import ValueType, parse

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


_ROUTER = ("norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group")


class Architecture(Record):
    """One ``model_type``."""

    family: Literal["llama", "gpt"] = "llama"  # its norms, activation, biases
    defaults: dict[str, Any]  # of keys that a file may leave out
    names: dict[str, str] = Field(default={})  # other names of a key in its files
    positions: Literal["learned"] | None = None  # None: the family's
    # flags of a file; linear layers have biases if all of them are true
    biases: list[str] = Field(default=[])
    # formula of the layers with a sliding window, if a file has a window but does not list them
    windows: str = ""
    experts: str = ""  # key of the size of an expert; empty: a dense model
    # further properties: formulas of ``parts.yaml``, or functions here
    parts: list[str] = Field(default=[])
    sets: dict[str, Any] = Field(default={})  # further fields of its models' records

    def shape(self, keys: Keys) -> Shape:
        """The model that a file's keys describe; raises SpaceError if no record can describe it."""
        shape = {**_sizes(keys), **FAMILIES[self.family], **self.sets}
        shape["positions"] = self.positions or shape["positions"]
        if self.biases:
            shape["linear_bias"] = all(keys.flag(name) for name in self.biases)
        if self.windows:
            shape |= _windows(keys, self.windows, shape)
        if self.experts:
            shape |= {
                "num_experts": keys.count("num_experts"),
                "experts_per_token": keys.count("num_experts_per_tok"),
                "expert_ffn_hidden_size": keys.count(self.experts),
            }
            router = {key: keys.given(key) for key in _ROUTER}
            shape |= {key: value for key, value in router.items() if value is not None}
        if "latent_attention" in self.parts:  # the file's head size is that of the rotary part
            shape = {k: v for k, v in shape.items() if k not in ("head_size", "num_kv_heads")}
        for part in self.parts:
            own = _BY_CODE.get(part) or _parts()[part].shape
            shape |= own(keys, shape)
        return shape


class Part(Record):
    """A property of architectures as formulas; see ``parts.yaml``."""

    formulas: dict[str, str]
    optional: list[str] = Field(default=[])

    def shape(self, keys: Keys, shape: Shape) -> Shape:
        """Fields that the formulas add to a model's record."""
        heads = shape["num_heads"]
        known: Shape = {name: v for name, v in shape.items() if type(v) is int}
        known.setdefault("num_kv_heads", heads)
        known.setdefault("head_size", shape["hidden_size"] // heads)
        for name, text in self.formulas.items():
            read = {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}
            for key in read - known.keys():
                needed = key not in self.optional
                known[key] = keys.count(key) if needed else keys.some(key, 0) or 0
            types: dict[str, ValueType] = dict.fromkeys(known, "number")
            known[name] = parse(text, types, any_type=True).value(known)
        return {name: known[name] for name in self.formulas.keys() & ModelFile.model_fields.keys()}


@cache
def _parts() -> Mapping[str, Part]:
    document = read_document(Path(__file__).with_name("parts.yaml"), SpaceError)
    return RootModel[dict[str, Part]].model_validate(document.root.plain()).root


@cache
def architectures() -> Mapping[str, Architecture]:
    """Known architectures by ``model_type``."""
    document = read_document(Path(__file__).with_suffix(".yaml"), SpaceError)
    return RootModel[dict[str, Architecture]].model_validate(document.root.plain()).root


def _sizes(keys: Keys) -> Shape:
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


def _windows(keys: Keys, formula: str, shape: Shape) -> Shape:
    """Windowed layers: as the file lists them, or by the architecture's formula."""
    switch = "use_sliding_window"  # Qwen's; transformers ignores it for other architectures
    if switch in keys.defaults and not keys.flag(switch):
        return {}
    size, kinds = keys.some("sliding_window"), keys.words("layer_types")
    part = Part(formulas={"windowed_layers": formula}, optional=["max_window_layers"])
    found = part.shape(keys, shape) if kinds is None else {}
    number = found["windowed_layers"] if kinds is None else kinds.count("sliding_attention")
    return {"windowed_layers": number, "window_size": size} if size and number else {}


def _sparse_layers(keys: Keys, shape: Shape) -> Shape:
    """Qwen 3 MoE: dense layers are listed, or all but every n-th."""
    every = keys.count("decoder_sparse_step")
    named = keys.items("mlp_only_layers", "layers")
    mixed = [i for i in range(shape["num_layers"]) if (i + 1) % every == 0 and i not in named]
    return {"dense_layers": shape["num_layers"] - len(mixed)}


def _interleaved_experts(keys: Keys, shape: Shape) -> Shape:
    """Llama 4: every n-th layer, or each listed one, has experts."""
    every, named = keys.count("interleave_moe_layer_step"), keys.items("moe_layers", "layers")
    mixed = len(named) or shape["num_layers"] // every
    return {
        "shared_ffn_hidden_size": shape["expert_ffn_hidden_size"],
        "dense_layers": shape["num_layers"] - mixed,
    }


def _lightning_layers(keys: Keys, shape: Shape) -> Shape:
    """MiniMax: layers with linear attention, listed or every second, have their block as window."""
    kinds, codes = keys.words("layer_types"), keys.items("attn_type_list", "0 and 1")
    linear = kinds.count("linear_attention") if kinds else codes.count(0) if codes else None
    linear = shape["num_layers"] // 2 if linear is None else linear
    return {"windowed_layers": linear, "window_size": keys.count("block_size")}


def tower_parameters(keys: Keys, width: int) -> int:
    """Parameters of the vision tower: its blocks, and the products to the layers' width.

    Left out are patches and positions, about 1 %, and sizes that a file does not state.
    """
    if keys.given("model_type") == "gemma3n_vision":  # has one size; includes the audio tower
        return 983_800_000
    h, f = keys.some("hidden_size") or 0, keys.some("intermediate_size") or 0
    ups = 3 if keys.given("model_type") == "pixtral" else 2  # gated
    depth = keys.some("depth") or keys.some("num_hidden_layers") or 0
    merged = (keys.some("spatial_merge_size") or 1) ** 2 * h
    joints = 1 + len(keys.items("deepstack_visual_indexes", "layers"))
    return depth * (4 * h * h + ups * h * f) + joints * merged * (merged + width)


def _embedding_width(keys: Keys, shape: Shape) -> Shape:
    """OPT: refuse an embedding whose width differs from the layers'."""
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


_BY_CODE: dict[str, Callable[[Keys, Shape], Shape]] = {
    "sparse_layers": _sparse_layers,
    "embedding_width": _embedding_width,
    "key_value_groups": _key_value_groups,
    "lightning_layers": _lightning_layers,
    "interleaved_experts": _interleaved_experts,
}
