"""The shape of a model. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from foundation.records import Record
from trainer.plan import sizes
from trainer.plan.limits import ConfigError, Layers, Tokens, Width

Some = Annotated[int, Field(ge=0, le=10_000_000)]
Together = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""For each key: keys that it needs, and keys that are meaningless without it."""
TOGETHER: Together = {
    "num_experts": (
        ("experts_per_token", "expert_ffn_hidden_size"),
        ("shared_ffn_hidden_size", "dense_layers"),
    ),
    "windowed_layers": (("window_size",), ()),
}


class ModelConfig(Record):
    """Shape of a decoder-only transformer. Sizes are counts, not bytes."""

    num_layers: Layers
    hidden_size: Width
    num_heads: Width
    num_kv_heads: Width | None = Field(
        default=None, description="groups of grouped-query attention; default num_heads"
    )
    ffn_hidden_size: Width | None = Field(default=None, description="default 4 * hidden_size")
    vocab_size: Tokens = Field(ge=2)
    seq_length: Tokens
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    positions: Literal["learned", "rotary"] = "learned"
    activation: Literal["gelu", "swiglu"] = "gelu"
    linear_bias: bool = True
    tied_embeddings: bool = True
    head_size: Width | None = Field(
        default=None, description="channels of a head; default hidden_size / num_heads"
    )
    qk_norm: bool = Field(default=False, description="each head's queries and keys are normed")
    qkv_bias: bool = Field(
        default=False, description="queries, keys and values have biases where linear_bias is false"
    )
    rope_theta: float = Field(default=10_000.0, gt=0, le=1e15)
    rope_factor: float = Field(
        default=1.0, ge=1, le=1e6, description="Llama 3.1: low frequencies are divided by it"
    )
    rope_low_freq_factor: float = Field(
        default=1.0, gt=0, le=1e6, description="turns in rope_original_length of a low frequency"
    )
    rope_high_freq_factor: float = Field(
        default=4.0, gt=0, le=1e6, description="turns of one that stays; above the other"
    )
    rope_original_length: Tokens = Field(
        default=8192, description="positions before they were stretched"
    )
    windowed_layers: Some = Field(
        default=0, description="layers whose tokens attend to the last window_size tokens only"
    )
    window_size: Width | None = None
    num_experts: Some = Field(
        default=0, description="of a layer, in place of its feed-forward part; 0: a dense model"
    )
    experts_per_token: Width | None = Field(default=None, description="that the router chooses")
    expert_ffn_hidden_size: Width | None = Field(default=None, description="of one expert")
    shared_ffn_hidden_size: Some = Field(
        default=0, description="of the experts that every token takes, together"
    )
    dense_layers: Some = Field(
        default=0, description="first layers with an ordinary feed-forward part and no experts"
    )
    router_score: Literal["softmax", "sigmoid"] = Field(
        default="softmax",
        description="of an expert; those of a token's experts are normalized to a sum of 1",
    )

    @model_validator(mode="after")
    def _agrees(self) -> ModelConfig:
        """Refuse keys without the others that they need, and sizes that do not divide."""
        self.check_together(TOGETHER)
        if self.num_experts and (self.experts_per_token or 0) > self.num_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than num_experts "
                f"{self.num_experts}"
            )
        for name in ("dense_layers", "windowed_layers"):
            if (layers := getattr(self, name)) > self.num_layers:
                raise ValueError(f"{name} {layers} is more than num_layers {self.num_layers}")
        if not self.head_size and not self.is_latent and self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_heads {self.num_heads}; "
                "heads of another size: set head_size"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not divisible by num_kv_heads {self.kv_heads}"
            )
        if not self.is_latent and self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions need an even head size, not {self.head_dim}")
        if self.rope_high_freq_factor <= self.rope_low_freq_factor:
            raise ValueError(
                f"rope_high_freq_factor {self.rope_high_freq_factor} is not above "
                f"rope_low_freq_factor {self.rope_low_freq_factor}"
            )
        return self

    def check_together(self, together: Together) -> None:
        """Raise ValueError for a key without the others that it needs."""
        for key, (needed, others) in together.items():
            own = (*needed, *others)
            lacking = [name for name in needed if not getattr(self, name)]
            found = [name for name in own if getattr(self, name)]
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
        """Channels of all heads' queries."""
        return self.num_heads * self.head_dim

    @property
    def is_latent(self) -> bool:
        """Whether heads have the sizes of ``latent``; never in this trainer."""
        return False

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
        """Last tokens that a layer's tokens attend to; None: all before them.

        The last of every so many layers sees all, as in Gemma 2 and 3.
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
        return sizes.Mixture(
            self.num_experts,
            self.experts_per_token,
            self.expert_ffn_hidden_size,
            self.shared_ffn_hidden_size,
            self.dense_layers,
            1,
        )

    @property
    def latent(self) -> sizes.Latent | None:
        """This trainer trains no latent attention; records of other models may."""
        return None

    @property
    def gated(self) -> bool:
        """SwiGLU: two projections up instead of one."""
        return self.activation == "swiglu"

    def model_type(self) -> str:
        """Name that ``transformers`` has for this shape; raises ConfigError if it has none."""
        parts = (self.norm, self.positions, self.activation, self.linear_bias)
        own: object = self.qk_norm or self.qkv_bias
        if parts == ("rmsnorm", "rotary", "swiglu", False) and not (self.qk_norm and self.qkv_bias):
            if self.num_experts:
                return self._mixture_type()
            if own or not self.windowed_layers:
                return "qwen3" if self.qk_norm else "qwen2" if self.qkv_bias else "llama"
            return "mistral" if self.windowed_layers == self.num_layers else "ministral"
        own = own or self.head_size or self.windowed_layers or self.num_experts
        whole = self.tied_embeddings and self.kv_heads == self.num_heads and not own
        if parts == ("layernorm", "learned", "gelu", True) and whole:
            return "gpt2"
        raise ConfigError(
            f"norm {self.norm}, positions {self.positions}, activation {self.activation}, "
            f"linear_bias {self.linear_bias}, qk_norm {self.qk_norm}, qkv_bias {self.qkv_bias}: "
            "Hugging Face weights are those of Llama (rmsnorm, rotary, swiglu, no bias), Qwen 2 "
            "(likewise, with qkv_bias), Qwen 3 (with qk_norm) or GPT-2 (layernorm, learned, gelu, "
            "biases, tied embeddings)"
        )

    def _mixture_type(self) -> str:
        """``model_type`` of a mixture with the norms and activation functions of Llama."""
        further = ("shared_ffn_hidden_size", "dense_layers", "windowed_layers", "qkv_bias")
        found = [f"{name} {getattr(self, name)}" for name in further if getattr(self, name)]
        found += [] if self.router_score == "softmax" else [f"router_score {self.router_score}"]
        if found:
            raise ConfigError(
                f"num_experts {self.num_experts} with {', '.join(found)}: Hugging Face weights of "
                "mixtures are those of Mixtral here, and of Qwen 3 (with qk_norm)"
            )
        return "qwen3_moe" if self.qk_norm else "mixtral"

    @property
    def num_parameters(self) -> int:
        """Trained parameters, counted exactly as ``trainer.model.transformer`` builds them."""
        tables = 1 if self.tied_embeddings else 2
        matrices = sizes.layer_matrices(self)
        biases = matrices[0].outputs if self.qkv_bias else 0
        biases = sum(matrix.outputs for matrix in matrices) if self.linear_bias else biases
        biases += 2 * self.head_dim if self.qk_norm else 0  # scales of norms, as many as biases
        norm = (2 if self.norm == "layernorm" else 1) * self.hidden_size
        positions = self.seq_length * self.hidden_size if self.positions == "learned" else 0
        layer = sizes.layer_weights(self) + biases + 2 * norm
        whole = self.num_layers * layer + norm + tables * sizes.table_weights(self) + positions
        if (mixture := self.mixture) is not None:
            dense = sizes.ffn_weights(self, self.ffn_size - mixture.shared_ffn_size)
            dense -= mixture.num_experts * self.hidden_size
            whole += mixture.dense_layers * dense
            whole += sizes.mixed_layers(self, mixture) * sizes.expert_weights(self, mixture)
        return int(whole)
