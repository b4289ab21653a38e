"""Our parameters as tensors of ``transformers``, by ``architectures.yaml``.

Ours stack matrices that multiply the same input: queries, keys and values, and the two projections
of SwiGLU. GPT-2's matrices are transposed in ``transformers``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import ge, le
from pathlib import Path
from typing import Any

from foundation.documents import read_document
from trainer.plan.limits import ConfigError
from trainer.plan.model import ROPE_DEFAULTS, ROPE_KEYS, ModelConfig

_LAYER = re.compile(r"blocks\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True)
class Architecture:
    """One ``model_type``; ``architectures.yaml`` says what its parts mean."""

    class_name: str
    top: Mapping[str, str]
    layers: str
    inside: Mapping[str, Sequence[str]]
    fields: Mapping[str, str]
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any]
    router_bias: Sequence[str] = ()
    transposed: bool = False
    experts: int = 0

    def sources(self, name: str) -> list[str]:
        """Tensors that make up one of our parameters, in the order of its rows; may be none."""
        found = _LAYER.fullmatch(name)
        if found is None:
            return [self.top[name]]
        layer, module, part = found.groups()
        if name.endswith(".router.bias"):
            return [f"{self.layers}{layer}.{own}" for own in self.router_bias]
        count = self.experts if "experts" in module else 1
        every = (theirs.format(n) for n in range(count) for theirs in self.inside[module])
        return [f"{self.layers}{layer}.{theirs}.{part}" for theirs in every]

    def is_transposed(self, name: str) -> bool:
        """Whether ``transformers`` stores our parameter transposed."""
        matrix = name.startswith("blocks.") and name.endswith(".weight") and "norm" not in name
        return self.transposed and matrix


def read_architectures(path: Path) -> dict[str, Architecture]:
    """The records of a YAML file; raises KeyError if one is ``like`` a record not before it."""
    found: dict[str, Architecture] = {}
    for kind, record in read_document(path).root.plain().items():
        own = dict(record)
        if "like" in own:
            like = found[own.pop("like")]
            own = {"top": like.top, "layers": like.layers, **own}
            for part in ("inside", "fields"):
                names = {**getattr(like, part), **own.get(part, {})}
                own[part] = {name: one for name, one in names.items() if one is not None}
        found[kind] = Architecture(**own)
    return found


@cache
def architectures() -> Mapping[str, Architecture]:
    """Architectures of ``transformers`` that ours can be, by ``model_type``."""
    return read_architectures(Path(__file__).with_name("architectures.yaml"))


def architecture_of(model: ModelConfig) -> Architecture:
    """See ``ModelConfig.model_type``."""
    found = architectures()[model.model_type()]
    whole = {} if model.q_lora_rank else {"attention.q_up": ("self_attn.q_proj",)}
    return replace(found, experts=model.num_experts, inside={**found.inside, **whole})


def config_of(model: ModelConfig) -> dict[str, Any]:
    """The ``config.json`` of a model."""
    found = architecture_of(model)
    rope = rope_of(model)
    greedy = "greedy" if model.n_group == 1 else "group_limited_greedy"
    method = "noaux_tc" if model.router_score == "sigmoid" else greedy
    latent = {"q_lora_rank": model.q_lora_rank or None, "topk_method": method}
    windows: dict[str, Any] = {"use_sliding_window": model.windowed_layers > 0}
    if model.windowed_layers:
        windows |= {"sliding_window": model.window_size, "layer_types": model.layer_types}
    return {
        "architectures": [found.class_name],
        "model_type": model.model_type(),
        **{key: getattr(model, ours) for key, ours in found.fields.items()},
        **(latent if model.kv_lora_rank else {}),
        **found.fixed,
        "torch_dtype": "float32",
        **({"rope_scaling": rope} if len(rope) > 1 else {}),
        **{key: value for key, value in windows.items() if key in found.defaults},
    }


def rope_of(model: ModelConfig) -> dict[str, Any]:
    """Scaling of rotary positions, in the keys of ``transformers``."""
    if model.rope_factor == 1 or model.positions != "rotary":
        return {"rope_type": "default"}
    keys = ROPE_KEYS[model.rope_type].items()
    return {"rope_type": model.rope_type, **{key: getattr(model, ours) for key, ours in keys}}


# A shorter sequence reads fewer positions, and our vocabulary may be rounded up.
_COMPARED = {"max_position_embeddings": le, "n_positions": le, "vocab_size": ge}
_NO_MATTER = ("architectures", "torch_dtype", "rope_scaling", "num_nextn_predict_layers")


def check_config(model: ModelConfig, given: Mapping[str, Any]) -> None:
    """Raise ConfigError, with keys and both values, unless a ``config.json`` is of this model."""
    wanted = config_of(model) | rope_of(model) | {"layer_types": model.layer_types}
    there = architectures().get(str(given.get("model_type")))
    known = {**(there.defaults if there else {}), **given}
    if there == architectures()[wanted["model_type"]]:  # the same under another name
        known["model_type"] = wanted["model_type"]
    rope = known.get("rope_parameters") or known.get("rope_scaling") or {}
    known["rope_type"] = rope.get("type", "default")
    way = str(rope.get("rope_type", rope.get("type")))
    known |= ROPE_DEFAULTS.get(way, {}) | rope
    if not known.get("layer_types"):
        known["layer_types"] = _layer_types(known, model.num_layers)
    heads = known.get("num_attention_heads")
    if known.get("head_dim") is None and isinstance(heads, int) and heads > 0:
        known["head_dim"] = known.get("hidden_size", 0) // heads
    # Sizes that follow from others where a file does not say, or says null.
    for key, other, factor in (
        ("n_inner", "n_embd", 4),
        ("num_key_value_heads", "num_attention_heads", 1),
        ("num_experts", "num_local_experts", 1),
    ):
        if known.get(key) is None and isinstance(known.get(other), int):
            known[key] = factor * known[other]
    wrong = [
        f"{key} is {known.get(key)!r} there and {ours!r} here"
        for key, ours in wanted.items()
        if key not in _NO_MATTER and not _fits(key, ours, known.get(key))
    ]
    if wrong:
        raise ConfigError(f"is of another model: {'; '.join(wrong)}")


def _fits(key: str, ours: Any, theirs: Any) -> bool:
    if key in _COMPARED:
        return isinstance(theirs, int) and _COMPARED[key](ours, theirs)
    return bool(theirs == ours)


def _layer_types(known: Mapping[str, Any], layers: int) -> list[str]:
    """Each layer's kind of attention, for a file that does not list them."""
    slides = known.get("sliding_window") and known.get("use_sliding_window", True)
    first = known.get("max_window_layers", 0)
    kinds = ("full_attention", "sliding_attention")
    return [kinds[bool(slides and layer >= first)] for layer in range(layers)]
