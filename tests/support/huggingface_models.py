"""Llama, Qwen, OLMoE, DeepSeek and GPT-2 over tensors as ``transformers`` names them, plainly in
float64.

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
    h = c["hidden_size"]
    found = {"model.embed_tokens.weight": (c["vocab_size"], h)}
    for n in range(c["num_hidden_layers"]):
        inner = {"input_layernorm": (h,), "post_attention_layernorm": (h,)}
        inner |= _latent_shapes(c) if "kv_lora_rank" in c else _attention_shapes(c)
        for name, size in _feed_forward(c, n):
            gate, up, down = (f"{name}.{part}" for part in _PARTS[c["model_type"] == "mixtral"])
            inner |= {gate: (size, h), up: (size, h), down: (h, size)}
        if n >= c.get("first_k_dense_replace", 0) and (experts := _number_of_experts(c)):
            inner[_router(c)] = (experts, h)
            if c["model_type"] == "deepseek_v3":
                name = f"model.layers.{n}.mlp.gate.e_score_correction_bias"
                found[name] = (experts,)
        if c["model_type"] == "qwen2_moe":
            inner["mlp.shared_expert_gate"] = (1, h)
        found |= {f"model.layers.{n}.{name}.weight": shape for name, shape in inner.items()}
        if "qwen2" in c["model_type"]:
            for p in "qkv":
                name = f"self_attn.{p}_proj"
                found[f"model.layers.{n}.{name}.bias"] = inner[name][:1]
    return {**found, "model.norm.weight": (h,), "lm_head.weight": (c["vocab_size"], h)}


def _attention_shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, size = c["hidden_size"], _head_size(c)
    heads, kv = (size * c[f"num_{n}_heads"] for n in ("attention", "key_value"))
    inner: dict[str, tuple[int, ...]] = {f"self_attn.{p}_proj": (kv, h) for p in "kv"}
    inner |= {"self_attn.q_proj": (heads, h), "self_attn.o_proj": (h, heads)}
    if "qwen3" in c["model_type"]:
        inner |= {f"self_attn.{p}_norm": (size,) for p in "qk"}
    if c["model_type"] == "olmoe":
        inner |= {"self_attn.q_norm": (heads,), "self_attn.k_norm": (kv,)}
    return inner


def _latent_shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    h, heads, rank = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"]
    plain, turned, value = (c[f"{n}_head_dim"] for n in ("qk_nope", "qk_rope", "v"))
    kept, queries = c["kv_lora_rank"], heads * (plain + turned)
    inner: dict[str, tuple[int, ...]] = {
        "self_attn.kv_a_proj_with_mqa": (kept + turned, h),
        "self_attn.kv_a_layernorm": (kept,),
        "self_attn.kv_b_proj": (heads * (plain + value), kept),
        "self_attn.o_proj": (h, heads * value),
    }
    if rank is None:
        return inner | {"self_attn.q_proj": (queries, h)}
    down = {"self_attn.q_a_proj": (rank, h), "self_attn.q_a_layernorm": (rank,)}
    return inner | down | {"self_attn.q_b_proj": (queries, rank)}


_PARTS = {False: ("gate_proj", "up_proj", "down_proj"), True: ("w1", "w3", "w2")}


def _head_size(c: dict[str, Any]) -> int:
    return int(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])


def _number_of_experts(c: dict[str, Any]) -> int:
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((c[name] for name in names if name in c), 0)


def _router(c: dict[str, Any]) -> str:
    return "block_sparse_moe.gate" if c["model_type"] == "mixtral" else "mlp.gate"


def _feed_forward(c: dict[str, Any], layer: int) -> list[tuple[str, int]]:
    """Names and inner sizes of a layer's experts, what all tokens take last; or of what it has."""
    number, size = _number_of_experts(c), c.get("intermediate_size", 0)
    if not number or layer < c.get("first_k_dense_replace", 0):
        return [("mlp", size)]
    at, size = _router(c).split(".")[0], c.get("moe_intermediate_size", size)
    each = [(f"{at}.experts.{n}", size) for n in range(number)]
    if "n_shared_experts" in c:
        each.append(("mlp.shared_experts", size * c["n_shared_experts"]))
    if c["model_type"] == "qwen2_moe":
        each.append(("mlp.shared_expert", c["shared_expert_intermediate_size"]))
    return each


def _weights_of_experts(c: dict[str, Any], scores: Tensor, bias: Tensor | float) -> Tensor:
    """Each expert's weight for each token, of the router's products (..., experts)."""
    scores = scores.sigmoid() if c.get("scoring_func") == "sigmoid" else scores.softmax(-1)
    choice = scores + bias
    if (groups := c.get("n_group", 1)) > 1:
        several = choice.unflatten(-1, (groups, -1))
        count = 2 if c["model_type"] == "deepseek_v3" else 1
        worth = several.sort(-1).values[..., -count:].sum(-1)
        least = worth.sort(-1).values[..., -c["topk_group"], None]
        choice = several.masked_fill((worth < least)[..., None], -math.inf).flatten(-2)
    least = choice.sort(-1).values[..., -c["num_experts_per_tok"], None]
    found = scores.masked_fill(choice < least, 0.0)
    if c.get("norm_topk_prob", c["model_type"] == "mixtral"):
        found = found / found.sum(-1, keepdim=True)
    return found * c.get("routed_scaling_factor", 1.0)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, window: int = 0, scale: float = 1.0
) -> Tensor:
    """Of (batch, heads, sequence, head), one head of queries at a time."""
    shared = query.size(1) // key.size(1)
    length = query.size(2)
    hidden = torch.full((length, length), -math.inf, dtype=query.dtype)
    hidden = hidden.triu(1) + (hidden.tril(-window) if window else 0.0)
    found = []
    for head in range(query.size(1)):
        k, v = key[:, head // shared], value[:, head // shared]
        scores = query[:, head] @ k.transpose(1, 2) * scale / math.sqrt(query.size(-1)) + hidden
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


def _yarn(frequencies: list[float], c: dict[str, Any]) -> list[float]:
    """Frequencies of YaRN: those of few turns are lowered, by the number of their channel."""
    scaling, count = c["rope_scaling"], len(frequencies)

    def channel(turns: float) -> float:
        """The one that makes so many turns in the sequences of before."""
        length = scaling["original_max_position_embeddings"]
        return count * math.log(length / (turns * 2 * math.pi)) / math.log(c["rope_theta"])

    first = max(math.floor(channel(scaling["beta_fast"])), 0)
    last = min(math.ceil(channel(scaling["beta_slow"])), 2 * count - 1)
    found = []
    for number, frequency in enumerate(frequencies):
        lowered = min(max((number - first) / (last - first or 0.001), 0.0), 1.0)
        found.append(frequency * (1 - lowered) + frequency / scaling["factor"] * lowered)
    return found


def _latent(c: dict[str, Any], y: Tensor, product: Any, norm: Any, turned: Any) -> Tensor:
    """Heads that latent attention gives, side by side."""
    plain, one, value = (c[f"{n}_head_dim"] for n in ("qk_nope", "qk_rope", "v"))
    if c["q_lora_rank"] is None:
        query = product(y, "self_attn.q_proj")
    else:
        low = norm(product(y, "self_attn.q_a_proj"), "self_attn.q_a_layernorm", 1e-6)
        query = product(low, "self_attn.q_b_proj")
    low, shared = product(y, "self_attn.kv_a_proj_with_mqa").split((c["kv_lora_rank"], one), -1)
    both = product(norm(low, "self_attn.kv_a_layernorm", 1e-6), "self_attn.kv_b_proj")
    query, both = _heads(query, plain + one), _heads(both, plain + value)
    shared = turned(shared[:, None]).expand(-1, query.size(1), -1, -1)
    query = torch.cat((query[..., :plain], turned(query[..., plain:])), -1)
    key = torch.cat((both[..., :plain], shared), -1)
    scaling = c.get("rope_scaling", {})
    mscale = 0.1 * scaling.get("mscale", 0.0) * math.log(scaling.get("factor", 1.0)) + 1
    return _attention(query, key, both[..., plain:], scale=mscale**2)


def _llama(c: dict[str, Any], t: Tensors, tokens: Tensor) -> Tensor:
    size = c.get("qk_rope_head_dim") or _head_size(c)
    frequency = c["rope_theta"] ** -(torch.arange(0, size, 2).double() / size)
    if "rope_scaling" in c:
        each = frequency.tolist()
        yarn = c["rope_scaling"]["rope_type"] == "yarn"
        each = _yarn(each, c) if yarn else [_stretched(f, c["rope_scaling"]) for f in each]
        frequency = torch.tensor(each, dtype=torch.float64)
    angle = torch.outer(torch.arange(tokens.size(1)).double(), frequency).repeat(1, 2)

    def norm(x: Tensor, name: str, eps: float = c["rms_norm_eps"]) -> Tensor:
        root = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        return x / root * t[f"{name}.weight"]

    def turned(x: Tensor) -> Tensor:
        if "kv_lora_rank" in c:  # pairs are neighbours
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            angles = torch.polar(torch.ones_like(angle), angle)[:, : size // 2]
            return torch.view_as_real(pairs * angles).flatten(-2)
        half = torch.cat((-x[..., size // 2 :], x[..., : size // 2]), -1)
        return x * angle.cos() + half * angle.sin()

    x = t["model.embed_tokens.weight"][tokens]
    for n in range(c["num_hidden_layers"]):
        at = f"model.layers.{n}"

        def product(x: Tensor, name: str, at: str = at) -> Tensor:
            return x @ t[f"{at}.{name}.weight"].t() + t.get(f"{at}.{name}.bias", 0.0)

        y = norm(x, f"{at}.input_layernorm")
        if "kv_lora_rank" in c:
            own = lambda x, name, eps, at=at: norm(x, f"{at}.{name}", eps)  # noqa: E731
            seen = _latent(c, y, product, own, turned)
        else:
            q, k, v = (product(y, f"self_attn.{p}_proj") for p in "qkv")
            if c["model_type"] == "olmoe":
                q, k = norm(q, f"{at}.self_attn.q_norm"), norm(k, f"{at}.self_attn.k_norm")
            q, k, v = (_heads(x, size) for x in (q, k, v))
            if "qwen3" in c["model_type"]:
                q, k = norm(q, f"{at}.self_attn.q_norm"), norm(k, f"{at}.self_attn.k_norm")
            near = "layer_types" not in c or c["layer_types"][n] == "sliding_attention"
            seen = _attention(turned(q), turned(k), v, near * (c.get("sliding_window") or 0))
        x = x + product(seen, "self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")

        def ffn(y: Tensor, name: str, product: Any = product) -> Tensor:
            gate, up, down = (f"{name}.{part}" for part in _PARTS[c["model_type"] == "mixtral"])
            return product(F.silu(product(y, gate)) * product(y, up), down)

        parts = [name for name, _ in _feed_forward(c, n)]
        if len(parts) == 1:
            x = x + ffn(y, *parts)
        else:
            bias = t.get(f"{at}.mlp.gate.e_score_correction_bias", 0.0)
            shares = _weights_of_experts(c, product(y, _router(c)), bias).unbind(-1)
            routed, further = parts[: len(shares)], parts[len(shares) :]
            every = (s[..., None] * ffn(y, of) for s, of in zip(shares, routed, strict=True))
            x = x + sum(every)
            for name in further:
                share = torch.ones(())
                if c["model_type"] == "qwen2_moe":
                    share = product(y, "mlp.shared_expert_gate").sigmoid()
                x = x + share * ffn(y, name)
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
