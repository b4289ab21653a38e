"""The shape of a model. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from foundation.documents import read_document
from foundation.records import Described
from trainer.plan import sizes
from trainer.plan.annotations import value_types
from trainer.plan.limits import ConfigError, Layers, Tokens, Width
from trainer.plan.rules.expression import Expression, ValueType, parse

Some = Annotated[int, Field(ge=0, le=10_000_000)]
Together = Mapping[str, Sequence[Sequence[str]]]
"""For each key: keys that it needs, and keys that are meaningless without it."""
_STATED: dict[str, Any] = read_document(Path(__file__).with_suffix(".yaml")).root.plain()
ROPE_KEYS, ROPE_DEFAULTS = _STATED["rope_keys"], _STATED["rope_defaults"]
_SPECIAL = {name for kind in _STATED["kinds"].values() for name in " ".join(kind).split()}


class ModelConfig(Described):
    """Shape of a decoder-only transformer. Sizes are counts, not bytes."""

    num_layers: Layers
    hidden_size: Width
    num_heads: Width
    num_kv_heads: Width | None = None
    """groups of grouped-query attention; default num_heads"""
    ffn_hidden_size: Width | None = Field(default=None, description="default 4 * hidden_size")
    vocab_size: Tokens = Field(ge=2)
    seq_length: Tokens
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_eps: float = Field(default=1e-5, gt=0, lt=1, description="added to the mean square")
    positions: Literal["learned", "rotary"] = "learned"
    activation: Literal["gelu", "swiglu"] = "gelu"
    linear_bias: bool = True
    tied_embeddings: bool = True
    head_size: Width | None = None
    """channels of a head; default hidden_size / num_heads"""
    qk_norm: bool = Field(default=False, description="each head's queries and keys are normed")
    qk_norm_all_heads: bool = Field(default=False, description="one norm for all heads together")
    qkv_bias: bool = False
    """queries, keys and values have biases where linear_bias is false"""
    rope_theta: float = Field(default=10_000.0, gt=0, le=1e15)
    rope_factor: float = Field(default=1.0, ge=1, le=1e6)
    """low frequencies are divided by it"""
    rope_type: Literal["llama3", "yarn"] = "llama3"
    """rule that says which frequencies are low"""
    rope_mscale: float = Field(default=1.0, gt=0, le=100)
    """yarn: scores grow by (0.1 mscale ln factor + 1)^2"""
    rope_low_freq_factor: float = Field(default=1.0, gt=0, le=1e6)
    """turns in rope_original_length of a low frequency"""
    rope_high_freq_factor: float = Field(default=4.0, gt=0, le=1e6)
    """turns in rope_original_length of a frequency that is kept; above rope_low_freq_factor"""
    rope_original_length: Tokens = 8192
    """sequence length before positions were stretched"""
    windowed_layers: Some = 0
    """layers whose tokens attend to the last window_size tokens only"""
    window_size: Width | None = None
    num_experts: Some = 0
    """experts per layer, in place of its feed-forward part; 0: a dense model"""
    experts_per_token: Width | None = Field(default=None, description="chosen by the router")
    expert_ffn_hidden_size: Width | None = Field(default=None, description="of one expert")
    shared_ffn_hidden_size: Some = 0
    """of all shared experts together, which every token takes"""
    dense_layers: Some = 0
    """first layers with an ordinary feed-forward part and no experts"""
    router_score: Literal["softmax", "sigmoid"] = "softmax"
    """function that turns the router's logits into scores of experts"""
    norm_topk_prob: bool = Field(default=True, description="scores of chosen experts sum to 1")
    routed_scaling_factor: float = Field(default=1.0, gt=0, le=1e6, description="factor on scores")
    n_group: Width = Field(default=1, description="groups of experts in a layer")
    topk_group: Width = Field(default=1, description="groups that a token's experts come from")
    shared_expert_gate: bool = False
    """each token weights the output of the shared experts"""
    q_lora_rank: Some = Field(default=0, description="rank of latent queries; 0: one full matrix")
    kv_lora_rank: Some = 0
    """rank of latent keys and values; 0: no latent attention"""
    qk_nope_head_dim: Width | None = None
    """channels per head of queries and keys without position"""
    qk_rope_head_dim: Width | None = None
    """channels per head with rotary positions; all heads share their key"""
    v_head_dim: Width | None = Field(default=None, description="channels per head of values")

    @model_validator(mode="after")
    def _agrees(self) -> ModelConfig:
        """Refuse keys without the others that they need, and sizes that do not divide."""
        self.check_together(_STATED["together"])
        further = {"kv_heads": self.kv_heads, "rotary_size": self.rotary_size}
        values = {**self.model_dump(exclude_none=True), "head_size": self.head_size or 0, **further}
        for condition, refusal in _conditions():
            if condition.names <= values.keys() and not condition.value(values):
                raise ValueError(refusal.format(**values))
        return self

    @model_validator(mode="after")
    def _is_latent_alone(self) -> ModelConfig:
        """Refuse settings that latent attention does not support."""
        if found := self.beside_latent:
            raise ValueError(f"{', '.join(found)} beside kv_lora_rank: remove it")
        return self

    @property
    def beside_latent(self) -> list[str]:
        """Settings that this trainer's latent attention does not support."""
        if (latent := self.latent) is None:
            return []
        size = latent.key_size + latent.rotary_size
        plain = ("head_size", "qk_norm", "qkv_bias", "windowed_layers")
        found = [name for name in plain if getattr(self, name)]
        found += ["num_kv_heads"] * (self.kv_heads != self.num_heads)
        found += ["learned positions"] * (self.positions != "rotary")
        # Kernels take values of as many channels as keys: values of fewer channels are padded.
        return found + ["a v_head_dim above keys' size"] * (latent.value_size > size)

    def check_together(self, together: Together) -> None:
        """Raise ValueError for a key without the others that it needs."""
        for key, (needed, others) in together.items():
            fields = {name: type(self).model_fields[name] for name in (*needed, *others)}
            lacking = [name for name in needed if not getattr(self, name)]
            found = [name for name, one in fields.items() if getattr(self, name) != one.default]
            if getattr(self, key) and lacking:
                raise ValueError(f"{key} is given: {', '.join(lacking)} must be, too")
            if not getattr(self, key) and found:
                raise ValueError(f"{', '.join(found)} without {key}: set it, or remove them")

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    @property
    def head_dim(self) -> int:
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def ffn_size(self) -> int:
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def attention_size(self) -> int:
        """Channels of all heads' queries; the mean of keys and values in latent attention."""
        if (latent := self.latent) is not None:
            # Scores have the inner size of the keys, their products with values that of the values.
            both = latent.key_size + latent.rotary_size + latent.value_size
            return int(self.num_heads * both) // 2
        return self.num_heads * self.head_dim

    @property
    def rotary_size(self) -> int:
        """Channels per head with rotary positions."""
        return self.qk_rope_head_dim or self.head_dim

    @property
    def attended(self) -> int:
        """Keys of each query, masked ones included; the mean of all layers."""
        if not self.windowed_layers or self.window_size is None:
            return self.seq_length
        # Causal masking halves a full attention matrix, but not a window.
        window = min(self.seq_length, 2 * self.window_size)
        whole = self.num_layers - self.windowed_layers
        return (whole * self.seq_length + self.windowed_layers * window) // self.num_layers

    def window(self, layer: int) -> int | None:
        """Tokens that a layer's sliding window spans; None: full causal attention.

        The last layer in each of equal groups has full attention, as in Gemma 2 and 3.
        """
        whole = self.num_layers - self.windowed_layers
        sees_all = whole > 0 and (layer + 1) % (self.num_layers // whole) == 0
        return None if sees_all else self.window_size

    @property
    def layer_types(self) -> list[str]:
        """Each layer's kind of attention, as ``transformers`` names it."""
        kinds = ("full_attention", "sliding_attention")
        return [kinds[self.window(n) is not None] for n in range(self.num_layers)]

    @property
    def mixture(self) -> sizes.Mixture | None:
        """Experts of a layer; None in a dense model."""
        if not self.num_experts:
            return None
        assert self.experts_per_token and self.expert_ffn_hidden_size  # as validated
        routed = (self.num_experts, self.experts_per_token, self.expert_ffn_hidden_size)
        return sizes.Mixture(*routed, self.shared_ffn_hidden_size, self.dense_layers, capacity=1)

    @property
    def latent(self) -> sizes.Latent | None:
        """Sizes of latent attention; None in a model without."""
        if not self.kv_lora_rank:
            return None
        assert self.qk_nope_head_dim and self.qk_rope_head_dim and self.v_head_dim
        heads = (self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim)
        return sizes.Latent(self.q_lora_rank, self.kv_lora_rank, *heads)

    @property
    def gated(self) -> bool:
        """SwiGLU: two projections up instead of one."""
        return self.activation == "swiglu"

    @property
    def num_shared_experts(self) -> int | None:
        """Shared experts of the routed experts' size; None if that does not divide their size."""
        whole, part = divmod(self.shared_ffn_hidden_size, self.expert_ffn_hidden_size or 1)
        return None if part else whole

    def model_type(self) -> str:
        """Name that ``transformers`` has for this shape; raises ConfigError if it has none."""
        parts = (self.norm, self.positions, self.activation, self.linear_bias)
        fields = type(self).model_fields
        special = {name for name in _SPECIAL if getattr(self, name) != fields[name].default}
        if parts == ("rmsnorm", "rotary", "swiglu", False):
            for kind, (needed, others) in _STATED["kinds"].items():
                parted = self.kv_lora_rank and self.num_shared_experts is None
                if {*needed.split()} <= special <= {*f"{needed} {others}".split()} and not parted:
                    some = kind == "mistral" and self.windowed_layers < self.num_layers
                    return "ministral" if some else kind
        whole = self.tied_embeddings and self.kv_heads == self.num_heads
        if parts == ("layernorm", "learned", "gelu", True) and whole and not special:
            return "gpt2"
        said = ("norm", "positions", "activation", "linear_bias", *sorted(special))
        raise ConfigError(
            f"{', '.join(f'{name} {getattr(self, name)}' for name in said)}: Hugging Face weights "
            "are those of Llama (rmsnorm, rotary, swiglu, no bias), Qwen 2 (with qkv_bias) and 3 "
            "(with qk_norm), Mixtral, OLMoE, Qwen 2 and 3 MoE, DeepSeek V2 and V3 (with whole "
            "shared experts), or GPT-2 (layernorm, learned, gelu, biases, tied embeddings)"
        )

    @property
    def num_parameters(self) -> int:
        """Trained parameters, counted exactly as ``trainer.model.transformer`` builds them."""
        tables = 1 if self.tied_embeddings else 2
        matrices = sizes.layer_matrices(self)
        normed = 0  # channels of norms beside those of the hidden size
        if (latent := self.latent) is not None:
            matrices = (*sizes.latent_matrices(self, latent), *matrices[2:])
            normed = latent.query_rank + latent.key_value_rank
        elif self.qk_norm:
            kept = self.kv_heads * self.head_dim
            normed = self.attention_size + kept if self.qk_norm_all_heads else 2 * self.head_dim
        biases = matrices[0].outputs if self.qkv_bias else 0
        biases = sum(matrix.outputs for matrix in matrices) if self.linear_bias else biases
        norm = 2 if self.norm == "layernorm" else 1
        positions = self.seq_length * self.hidden_size if self.positions == "learned" else 0
        vectors = biases + norm * (2 * self.hidden_size + normed)
        gates = self.shared_expert_gate * (self.num_layers - self.dense_layers) * self.hidden_size
        whole = sizes.model_weights(self) + self.num_layers * vectors + gates
        return int(whole + norm * self.hidden_size + tables * sizes.table_weights(self) + positions)


@cache
def _conditions() -> list[tuple[Expression, str]]:
    types: dict[str, ValueType] = value_types(ModelConfig)
    types |= dict.fromkeys(("kv_heads", "rotary_size"), "number")
    return [(parse(each["text"], types), each["refusal"]) for each in _STATED["conditions"]]
