"""A pipeline stage's parameters, by name, shape and traits, without building it. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from trainer.config import ModelConfig
from trainer.sizes import Matrix, layer_matrices

Shape = tuple[int, ...]


class Traits(NamedTuple):
    """What decides how a parameter is split, updated and summed."""

    split: bool
    """Each tensor-parallel rank holds its own part; otherwise all hold the whole."""
    decays: bool
    """Weight decay applies: to matrices, not to norms and biases."""
    shared: bool
    """The tied embedding, held by the first and the last pipeline stage."""
    copy: bool
    """The last stage's copy of it, which the global norm must not count again."""


class Parameter(NamedTuple):
    """One parameter of a tensor-parallel rank."""

    name: str
    """In the whole model."""
    shape: Shape
    """Of this rank's part."""
    traits: Traits

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def stage_parameters(
    model: ModelConfig, index: int = 0, num_stages: int = 1, tp: int = 1
) -> list[list[Parameter]]:
    """What ``model.transformer.Stage`` holds, in the order of its modules.

    Args:
        model: the whole model.
        index: of the stage.
        num_stages: must divide the layers.
        tp: ranks that split it.

    Returns:
        The units that FSDP2 gathers: one for each layer; in a pipeline one for the embedding and
        one for the head, where the stage has them; last what is outside of these, if anything.
    """
    first, last = index == 0, index == num_stages - 1
    pipelined = num_stages > 1
    tied = model.tied_embeddings and pipelined
    table = (model.vocab_size // tp, model.hidden_size)

    def plain(name: str, *shape: int) -> Parameter:
        return Parameter(name, shape, Traits(False, len(shape) > 1, False, False))

    embedding, positions, head = [], [], []
    if first:
        traits = Traits(tp > 1, True, tied, False)
        embedding = [Parameter("embedding.weight", table, traits)]
        if model.positions == "learned":
            positions = [plain("positions.weight", model.seq_length, model.hidden_size)]
    if last and (pipelined or not model.tied_embeddings):
        head = [Parameter("head.weight", table, Traits(tp > 1, True, tied, tied))]
    norm = _norm(model, "norm") if last else []
    per_stage = model.num_layers // num_stages
    layers = range(index * per_stage, (index + 1) * per_stage)
    blocks = [_block(model, f"blocks.{layer}", tp) for layer in layers]
    if pipelined:
        units = [*blocks, embedding, head, positions + norm]
    else:
        units = [*blocks, embedding + positions + norm + head]
    return [unit for unit in units if unit]


def in_order(units: list[list[Parameter]]) -> Iterator[Parameter]:
    """All parameters of a stage in the order of a forward pass."""
    places = {"embedding": 0, "positions": 1, "blocks": 2, "norm": 3, "head": 4}
    flat = [parameter for unit in units for parameter in unit]
    return iter(sorted(flat, key=lambda parameter: places[parameter.name.split(".")[0]]))


def _norm(model: ModelConfig, name: str) -> list[Parameter]:
    traits = Traits(False, False, False, False)
    names = ("weight", "bias") if model.norm == "layernorm" else ("weight",)
    return [Parameter(f"{name}.{part}", (model.hidden_size,), traits) for part in names]


def _block(model: ModelConfig, name: str, tp: int) -> list[Parameter]:
    qkv, out, up, down = (_linear(model, name, matrix, tp) for matrix in layer_matrices(model))
    attention = [*_norm(model, f"{name}.attention_norm"), *qkv, *out]
    return [*attention, *_norm(model, f"{name}.mlp_norm"), *up, *down]


def _linear(model: ModelConfig, block: str, matrix: Matrix, tp: int) -> list[Parameter]:
    """Weight and bias of a layer's matrix; a bias is split where the outputs are."""
    name, split = f"{block}.{matrix.name}", tp > 1
    if matrix.splits_outputs:
        shape, bias = (matrix.outputs // tp, matrix.inputs), (matrix.outputs // tp,)
    else:
        shape, bias = (matrix.outputs, matrix.inputs // tp), (matrix.outputs,)
    weight = Parameter(f"{name}.weight", shape, Traits(split, True, False, False))
    if not model.linear_bias:
        return [weight]
    traits = Traits(split and matrix.splits_outputs, False, False, False)
    return [weight, Parameter(f"{name}.bias", bias, traits)]
