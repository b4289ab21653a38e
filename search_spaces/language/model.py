"""Shape of a model, including tokens that experts drop and parameters beside the layers.

The built-in trainer only trains shapes of ``ModelConfig``; the cost model prices all.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from trainer.plan.model import ModelConfig
from trainer.plan.sizes import Mixture, model_weights, table_weights

_TOGETHER = {"num_experts": ((), ("capacity_factor",))}


class ModelShape(ModelConfig):
    """Shape of a decoder-only transformer, under the names that public configurations use."""

    capacity_factor: float | None = Field(default=None, gt=0, le=1000)
    """rows of an expert, relative to its mean share: further tokens are dropped, missing ones are
    padded; default: no token is dropped"""
    further_parameters: Annotated[int, Field(ge=0, le=10**13)] = 0
    """beside the layers and tables: of a vision tower, or of layers that predict further tokens;
    they are counted but not priced"""

    @model_validator(mode="after")
    def _whole_shape(self) -> ModelShape:
        """Refuse further keys without those that they need."""
        self.check_together(_TOGETHER)
        return self

    @model_validator(mode="after")
    def _is_latent_alone(self) -> ModelShape:
        """Allow more beside latent attention, as other trainers do; see ``beyond_trainer``."""
        return self

    @property
    def beyond_trainer(self) -> list[str]:
        """Keys that describe what the built-in trainer cannot train."""
        own = ModelShape.model_fields.keys() - ModelConfig.model_fields.keys()
        found = [name for name in ModelShape.model_fields if name in own and getattr(self, name)]
        return found + self.beside_latent

    @property
    def mixture(self) -> Mixture | None:
        plain = super().mixture
        return plain and plain._replace(capacity=self.capacity_factor or 1)

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without a few in 1000, such as biases beside experts."""
        if not self.beyond_trainer:
            return super().num_parameters
        tables = 1 if self.tied_embeddings else 2
        norms = (2 if self.norm == "layernorm" else 1) * (2 * self.num_layers + 1)
        positions = self.seq_length if self.positions == "learned" else 0
        rows = (norms + positions) * self.hidden_size
        weights = model_weights(self) + tables * table_weights(self) + self.further_parameters
        return int(weights + rows)
