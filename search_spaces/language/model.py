"""Shape of a model, including latent attention, windows and tokens that experts drop.

The built-in trainer trains those of ``ModelConfig`` only; the cost model prices all.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from foundation.records import Described
from trainer.plan.model import ModelConfig, Some
from trainer.plan.sizes import Latent, Mixture, model_weights, table_weights

Count = Annotated[int, Field(ge=1, le=10_000_000)]
_TOGETHER = {
    "num_experts": ((), ("capacity_factor",)),
    "kv_lora_rank": (("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), ("q_lora_rank",)),
}


class ModelShape(ModelConfig, Described):
    """Shape of a decoder-only transformer, under the names that public configurations use."""

    capacity_factor: float | None = Field(default=None, gt=0, le=1000)
    """rows of an expert, of its mean share; tokens beyond are dropped, and too few are padded;
    default: no token is dropped"""
    q_lora_rank: Some = 0
    """of latent attention: the queries' rank; 0: one matrix"""
    kv_lora_rank: Some = 0
    """the keys' and values' rank; 0: no latent attention"""
    qk_nope_head_dim: Count | None = Field(default=None, description="without position")
    qk_rope_head_dim: Count | None = Field(default=None, description="with: one for all heads")
    v_head_dim: Count | None = None
    further_parameters: Annotated[int, Field(ge=0, le=10**13)] = 0
    """beside the layers and tables: of what reads pictures, or predicts further tokens; they are
    counted and not priced"""

    @model_validator(mode="after")
    def _whole_shape(self) -> ModelShape:
        """Refuse further keys without the others that they need."""
        self.check_together(_TOGETHER)
        if self.head_size and self.kv_lora_rank:
            raise ValueError("head_size beside kv_lora_rank: remove it")
        return self

    @property
    def beyond_trainer(self) -> list[str]:
        """Keys that describe what the built-in trainer cannot train."""
        own = ModelShape.model_fields.keys() - ModelConfig.model_fields.keys()
        return [name for name in ModelShape.model_fields if name in own and getattr(self, name)]

    @property
    def is_latent(self) -> bool:
        return self.kv_lora_rank > 0

    @property
    def attention_size(self) -> int:
        if (latent := self.latent) is not None:
            # Scores have the inner size of the keys, their products with values that of the values.
            both = latent.key_size + latent.rotary_size + latent.value_size
            return int(self.num_heads * both) // 2
        return super().attention_size

    @property
    def mixture(self) -> Mixture | None:
        plain = super().mixture
        return plain and plain._replace(capacity=self.capacity_factor or 1)

    @property
    def latent(self) -> Latent | None:
        if not self.kv_lora_rank:
            return None
        assert self.qk_nope_head_dim and self.qk_rope_head_dim and self.v_head_dim
        return Latent(
            self.q_lora_rank,
            self.kv_lora_rank,
            self.qk_nope_head_dim,
            self.qk_rope_head_dim,
            self.v_head_dim,
        )

    @property
    def num_parameters(self) -> int:
        """Number of parameters; biases beside experts and the like, a few in 1000, are left out."""
        if not self.beyond_trainer:
            return super().num_parameters
        tables = 1 if self.tied_embeddings else 2
        norms = (2 if self.norm == "layernorm" else 1) * (2 * self.num_layers + 1)
        positions = self.seq_length if self.positions == "learned" else 0
        rows = (norms + positions) * self.hidden_size
        weights = model_weights(self) + tables * table_weights(self) + self.further_parameters
        return int(weights + rows)
