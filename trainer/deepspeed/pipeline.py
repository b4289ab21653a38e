"""The model as layers of DeepSpeed's pipeline, which compute the same as ``transformer.Stage``.

This module imports DeepSpeed: only ``deepspeed.engine`` imports it, and late.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor

from trainer.model.attention import Places, near_mask
from trainer.model.initialize import initialize
from trainer.model.linear import norm_layer
from trainer.model.transformer import Block, Embedding, Head, LayerOptions, Positions, rotary_table
from trainer.parallel.loss import cross_entropy
from trainer.plan.config import TrainConfig
from trainer.plan.model import ModelConfig


class PipedBlock(Block):
    """A block that makes its own rotary table: only hidden states pass between stages."""

    def __init__(self, model: ModelConfig, layer: int) -> None:
        super().__init__(model, LayerOptions(), layer)
        self.model = model
        self.table: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # one tensor passes
        if self.model.positions == "rotary" and self.table is None:
            self.table = rotary_table(self.model, x)
        window = self.attention.window
        near = None if window is None else near_mask(window, x)
        return super().forward(x, Places(self.table, None, near))


class PipedEmbedding(Embedding):
    """Takes tokens as (batch, sequence)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.t())


def build_pipeline(config: TrainConfig) -> PipelineModule:
    """This rank's stage with its initial weights; every rank must call it.

    Stages hold equally many blocks, the first one also the embedding, the last one also the head.
    """
    model = config.model
    specs: list[tuple[str, LayerSpec]] = []
    if model.tied_embeddings:
        entry = TiedLayerSpec("embedding", PipedEmbedding, model)
        head = TiedLayerSpec(
            "embedding", PipedEmbedding, model, forward_fn=lambda e, x: F.linear(x, e.weight)
        )
    else:
        entry, head = LayerSpec(PipedEmbedding, model), LayerSpec(Head, model, True)
    specs.append(("embedding.", entry))
    if model.positions == "learned":
        specs.append(("positions.", LayerSpec(Positions, model)))
    layers = range(model.num_layers)
    specs += [(f"blocks.{layer}.", LayerSpec(PipedBlock, model, layer)) for layer in layers]
    norm = norm_layer(model)
    last = LayerSpec(type(norm), norm.normalized_shape, eps=norm.eps)
    specs += [("norm.", last), ("head.", head)]
    with torch.no_grad():  # it broadcasts the tied weight
        pipeline = PipelineModule(
            [spec for _, spec in specs],
            num_stages=config.pp,
            loss_fn=functools.partial(cross_entropy, group=None),
            partition_method="type:PipedBlock",
            activation_checkpoint_interval=1 if config.recompute == "full" else 0,
            checkpointable_layers=["PipedBlock"],
        )
    children = dict(pipeline.named_children())
    for number, (prefix, spec) in enumerate(specs):
        tied = isinstance(spec, TiedLayerSpec)
        table, name = (pipeline.tied_modules, spec.key) if tied else (children, str(number))
        if name in table:
            initialize(table[name], "embedding." if tied else prefix, model, config.seed)
    return pipeline
