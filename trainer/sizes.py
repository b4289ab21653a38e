"""Sizes of a transformer's matrices and vectors, of one model or of columns of models.

Everything that counts weights counts them here: the parameters that the trainer builds, FLOPs, and
the weights of the cost model. Sizes are whole numbers, or numpy columns of them; torch-free.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

Size = Any  # int, or a numpy column that broadcasts against the others


class Dimensions(Protocol):
    """A model's shape, as ``ModelConfig`` says it of one model and ``Jobs`` of many."""

    @property
    def num_layers(self) -> Size: ...
    @property
    def hidden_size(self) -> Size: ...
    @property
    def head_dim(self) -> Size: ...
    @property
    def kv_heads(self) -> Size: ...
    @property
    def ffn_size(self) -> Size: ...
    @property
    def gated(self) -> Size: ...
    @property
    def vocab_size(self) -> Size: ...
    @property
    def seq_length(self) -> Size: ...


class Matrix(NamedTuple):
    """One matrix of a transformer layer.

    Attributes:
        name: in the layer, as ``trainer.model.transformer`` has it.
        inputs, outputs: its sizes.
        splits_outputs: tensor parallelism splits its outputs; else its inputs.
    """

    name: str
    inputs: Size
    outputs: Size
    splits_outputs: bool


def layer_matrices(model: Dimensions) -> tuple[Matrix, ...]:
    """Of one layer: queries, keys and values; what attention gives; up (and gate); down."""
    hidden, ffn = model.hidden_size, model.ffn_size
    return (
        Matrix("attention.qkv", hidden, hidden + 2 * model.kv_heads * model.head_dim, True),
        Matrix("attention.out", hidden, hidden, False),
        Matrix("mlp.up", hidden, (1 + model.gated) * ffn, True),
        Matrix("mlp.down", ffn, hidden, False),
    )


LAYER_SUMS = 4
"""Sums over tensor-parallel ranks in both passes of a layer, one for each matrix: of its output
where its inputs are split, of its input's gradient elsewhere (Shoeybi et al. 2019)."""
LAYER_GATHERS = 6
"""With sequence parallelism each sum is a reduce-scatter, and activations are gathered in the other
pass of the same matrix, once more before the weight's gradient of one whose outputs are split
(Korthikanti et al. 2022)."""


def layer_weights(model: Dimensions) -> Size:
    """Elements of one layer's matrices; norms and biases, a share of 1 / h of it, are left out."""
    return sum(matrix.inputs * matrix.outputs for matrix in layer_matrices(model))


def table_weights(model: Dimensions) -> Size:
    """Elements of one vocabulary table: the embedding, or the output layer."""
    return model.vocab_size * model.hidden_size


def stage_weights(model: Dimensions, layers: Size, tables: Size, tp: Size = 1) -> Size:
    """Elements of a pipeline stage's matrices on one of its tensor-parallel ranks.

    Args:
        model: the whole model.
        layers: that the stage has.
        tables: of the vocabulary that it has: 0, 1 or 2.
        tp: ranks that split it.
    """
    return (layers * layer_weights(model) + tables * table_weights(model)) / tp
