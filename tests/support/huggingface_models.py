"""Llama, Qwen and GPT-2 over tensors as ``transformers`` names them, plainly in float64.

An independent implementation: nothing of the trainer's, neither its layers nor its reader.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = dict[str, Tensor]


def read(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """What ``config.json`` says, and every tensor of ``model.safetensors``."""
    raw = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    table = json.loads(raw[8 : 8 + size])
    table.pop("__metadata__", None)
    tensors = {}
    for name, entry in table.items():
        assert entry["dtype"] == "F32"
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        numbers = np.frombuffer(raw[begin:end], "<f4").reshape(entry["shape"])
        tensors[name] = torch.from_numpy(numbers.copy()).double()
    return json.loads((folder / "config.json").read_text()), tensors


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    """The same the other way round."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    table, data = {}, b""
    for name, tensor in tensors.items():
        numbers = tensor.float().numpy().tobytes()
        offsets = [len(data), len(data) + len(numbers)]
        table[name] = {"dtype": "F32", "shape": [*tensor.shape], "data_offsets": offsets}
        data += numbers
    head = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)


def logits(config: dict[str, Any], tensors: Tensors, tokens: Tensor) -> Tensor:
    """(batch, sequence, vocabulary) of tokens (batch, sequence)."""
    model = _gpt2 if config["model_type"] == "gpt2" else _llama
    return model(config, tensors, tokens)


def drawn(config: dict[str, Any]) -> Tensors:
    """Random weights of a model, large enough that every one shows in the logits."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.2
        + (1.0 if "norm" in name or "ln_" in name else 0.0)
        for name, shape in _shapes(config).items()
    }


def _shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    if c["model_type"] == "gpt2":
        h, ffn = c["n_embd"], c["n_inner"]
        found: dict[str, tuple[int, ...]] = {
            "transformer.wte.weight": (c["vocab_size"], h),
            "transformer.wpe.weight": (c["n_positions"], h),
        }
        for n in range(c["n_layer"]):
            inner = {"ln_1": (h,), "attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h)}
            inner |= {"ln_2": (h,), "mlp.c_fc": (h, ffn), "mlp.c_proj": (ffn, h)}
            for name, shape in inner.items():
                found[f"transformer.h.{n}.{name}.weight"] = shape
                found[f"transformer.h.{n}.{name}.bias"] = shape[-1:]
        return {**found, "transformer.ln_f.weight": (h,), "transformer.ln_f.bias": (h,)}
    h, ffn = c["hidden_size"], c.get("intermediate_size", 0)
    heads, kv = (c["head_dim"] * c[f"num_{n}_heads"] for n in ("attention", "key_value"))
    found = {"model.embed_tokens.weight": (c["vocab_size"], h)}
    for n in range(c["num_hidden_layers"]):
        inner = {"input_layernorm": (h,), "post_attention_layernorm": (h,)}
        inner |= {"self_attn.q_proj": (heads, h), "self_attn.k_proj": (kv, h)}
        inner |= {"self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, heads)}
        if "qwen3" in c["model_type"]:
            inner |= {f"self_attn.{p}_norm": (c["head_dim"],) for p in "qk"}
        if experts := _experts(c):
            router, *each = experts
            inner[router] = (len(each), h)
            ffn = c.get("moe_intermediate_size", ffn)
        for gate, up, down in experts[1:] or [[f"mlp.{p}_proj" for p in ("gate", "up", "down")]]:
            inner |= {gate: (ffn, h), up: (ffn, h), down: (h, ffn)}
        found |= {f"model.layers.{n}.{name}.weight": shape for name, shape in inner.items()}
        if c["model_type"] == "qwen2":
            for p in "qkv":
                name = f"self_attn.{p}_proj"
                found[f"model.layers.{n}.{name}.bias"] = inner[name][:1]
    return {**found, "model.norm.weight": (h,), "lm_head.weight": (c["vocab_size"], h)}


def _experts(c: dict[str, Any]) -> list[Any]:
    """The router's name, and for each expert those of gate, up and down; none of a dense model."""
    if c["model_type"] == "mixtral":
        at, names, count = "block_sparse_moe", ("w1", "w3", "w2"), c["num_local_experts"]
    elif c["model_type"] == "qwen3_moe":
        at, names, count = "mlp", ("gate_proj", "up_proj", "down_proj"), c["num_experts"]
    else:
        return []
    each = [[f"{at}.experts.{n}.{name}" for name in names] for n in range(count)]
    return [f"{at}.gate", *each]


def _attention(query: Tensor, key: Tensor, value: Tensor, window: int = 0) -> Tensor:
    """Of (batch, heads, sequence, head), one head of queries at a time."""
    shared = query.size(1) // key.size(1)
    length = query.size(2)
    hidden = torch.full((length, length), -math.inf, dtype=query.dtype)
    hidden = hidden.triu(1) + (hidden.tril(-window) if window else 0.0)
    found = []
    for head in range(query.size(1)):
        k, v = key[:, head // shared], value[:, head // shared]
        scores = query[:, head] @ k.transpose(1, 2) / math.sqrt(query.size(-1)) + hidden
        found.append(scores.softmax(-1) @ v)
    return torch.cat(found, -1)


def _heads(x: Tensor, size: int) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def _stretched(frequency: float, c: dict[str, Any]) -> float:
    """A frequency of Llama 3.1, by its wave length."""
    length = 2 * math.pi / frequency
    before, low, high = (
        c[key]
        for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    if length < before / high:
        return frequency
    if length > before / low:
        return frequency / c["factor"]
    smooth = (before / length - low) / (high - low)
    return (1 - smooth) * frequency / c["factor"] + smooth * frequency


def _llama(c: dict[str, Any], t: Tensors, tokens: Tensor) -> Tensor:
    size = c["head_dim"]
    frequency = c["rope_theta"] ** -(torch.arange(0, size, 2).double() / size)
    if "rope_scaling" in c:
        frequency = torch.tensor([_stretched(f, c["rope_scaling"]) for f in frequency.tolist()])
    angle = torch.outer(torch.arange(tokens.size(1)).double(), frequency).repeat(1, 2)

    def norm(x: Tensor, name: str) -> Tensor:
        root = (x.square().mean(-1, keepdim=True) + c["rms_norm_eps"]).sqrt()
        return x / root * t[f"{name}.weight"]

    def turned(x: Tensor) -> Tensor:
        half = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), -1)
        return x * angle.cos() + half * angle.sin()

    x = t["model.embed_tokens.weight"][tokens]
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}"

        def product(x: Tensor, name: str, at: str = at) -> Tensor:
            return x @ t[f"{at}.{name}.weight"].t() + t.get(f"{at}.{name}.bias", 0.0)

        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (_heads(product(y, f"self_attn.{p}_proj"), size) for p in "qkv")
        if "qwen3" in c["model_type"]:
            q, k = norm(q, f"{at}.self_attn.q_norm"), norm(k, f"{at}.self_attn.k_norm")
        near = "layer_types" not in c or c["layer_types"][n] == "sliding_attention"
        seen = _attention(turned(q), turned(k), v, near * (c.get("sliding_window") or 0))
        x = x + product(seen, "self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")

        def ffn(y: Tensor, gate: str, up: str, down: str, product: Any = product) -> Tensor:
            return product(F.silu(product(y, gate)) * product(y, up), down)

        if experts := _experts(c):
            router, *each = experts
            scores = product(y, router)
            least = scores.topk(c["num_experts_per_tok"]).values[..., -1:]
            shares = scores.masked_fill(scores < least, -math.inf).softmax(-1)
            every = (
                share[..., None] * ffn(y, *of)
                for share, of in zip(shares.unbind(-1), each, strict=True)
            )
            x = x + sum(every)
        else:
            x = x + ffn(y, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    last = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    return norm(x, "model.norm") @ t[f"{last}.weight"].t()


def _gpt2(c: dict[str, Any], t: Tensors, tokens: Tensor) -> Tensor:
    def norm(x: Tensor, name: str) -> Tensor:
        scale, shift = t[f"transformer.{name}.weight"], t[f"transformer.{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], scale, shift, c["layer_norm_epsilon"])

    def product(x: Tensor, name: str) -> Tensor:
        return x @ t[f"transformer.{name}.weight"] + t[f"transformer.{name}.bias"]

    x = t["transformer.wte.weight"][tokens]
    x = x + t["transformer.wpe.weight"][: tokens.size(1)]
    for n in range(c["n_layer"]):
        parts = product(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn").chunk(3, -1)
        q, k, v = (_heads(part, c["n_embd"] // c["n_head"]) for part in parts)
        x = x + product(_attention(q, k, v), f"h.{n}.attn.c_proj")
        y = F.gelu(product(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc"), approximate="tanh")
        x = x + product(y, f"h.{n}.mlp.c_proj")
    return norm(x, "ln_f") @ t["transformer.wte.weight"].t()
