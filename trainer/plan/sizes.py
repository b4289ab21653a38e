"""Sizes of a transformer's matrices and vectors, of one model or of columns of models.

Everything that counts weights counts them here: the parameters that the trainer builds, FLOPs, and
the weights of the cost model. Sizes are whole numbers, or numpy columns of them; torch-free.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

Size = Any  # int, or a numpy column that broadcasts against the others


class Mixture(NamedTuple):
    """Experts in place of a layer's feed-forward part, of which each token takes a few.

    Attributes:
        num_experts: of a layer, without shared ones; 0 in a column: that model has none.
        experts_per_token: that the router chooses.
        expert_ffn_size: f of one expert.
        shared_ffn_size: f of the experts that every token takes, together; 0: there are none.
        dense_layers: of the model's layers, those with an ordinary feed-forward part.
        capacity: rows that an expert computes, for each that is its share; 1 where no token is
            dropped and none is made up.
    """

    num_experts: Size
    experts_per_token: Size
    expert_ffn_size: Size
    shared_ffn_size: Size
    dense_layers: Size
    capacity: Size


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1).

    Attributes:
        query_rank: of the queries' low-rank product; 0: they are one matrix.
        key_value_rank: of the keys' and values'; 0 in a column: that model has none.
        key_size: channels of a head's key without position.
        rotary_size: those with, of which all heads share one key.
        value_size: of a head's value.
    """

    query_rank: Size
    key_value_rank: Size
    key_size: Size
    rotary_size: Size
    value_size: Size


class Dimensions(Protocol):
    """A model's shape, as ``ModelConfig`` says it of one model and ``Jobs`` of many."""

    @property
    def num_layers(self) -> Size: ...
    @property
    def hidden_size(self) -> Size: ...
    @property
    def num_heads(self) -> Size: ...
    @property
    def head_dim(self) -> Size: ...
    @property
    def attention_size(self) -> Size: ...
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
    @property
    def attended(self) -> Size: ...
    @property
    def mixture(self) -> Mixture | None: ...
    @property
    def latent(self) -> Latent | None: ...


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
    """Matrices of a plain layer: queries, keys, values; attention output; up (and gate); down."""
    hidden, ffn, queries = model.hidden_size, model.ffn_size, model.attention_size
    return (
        Matrix("attention.qkv", hidden, queries + 2 * model.kv_heads * model.head_dim, True),
        Matrix("attention.out", queries, hidden, False),
        Matrix("mlp.up", hidden, (1 + model.gated) * ffn, True),
        Matrix("mlp.down", ffn, hidden, False),
    )


def latent_matrices(model: Dimensions, latent: Latent) -> tuple[Matrix, ...]:
    """Matrices of latent attention: down to the ranks, up to the heads, and what attention gives.

    Those down are whole on every tensor-parallel rank. Without a rank of the queries the first is
    empty, and the second begins at the hidden size.
    """
    hidden, heads = model.hidden_size, model.num_heads
    rank, one = latent.query_rank, latent.key_size + latent.rotary_size
    begin = rank + (rank == 0) * hidden
    kept, up = latent.key_value_rank, latent.key_size + latent.value_size
    return (
        Matrix("attention.q_down", hidden, rank, True),
        Matrix("attention.q_up", begin, heads * one, True),
        Matrix("attention.kv_down", hidden, kept + latent.rotary_size, True),
        Matrix("attention.kv_up", kept, heads * up, True),
        Matrix("attention.out", heads * latent.value_size, hidden, False),
    )


def _elements(matrices: tuple[Matrix, ...]) -> Size:
    return sum(matrix.inputs * matrix.outputs for matrix in matrices)


def attention_weights(model: Dimensions) -> Size:
    """Elements of one layer's attention matrices."""
    plain = _elements(layer_matrices(model)[:2])
    if model.latent is None:
        return plain
    some = model.latent.key_value_rank > 0
    return some * _elements(latent_matrices(model, model.latent)) + (1 - some) * plain


def ffn_weights(model: Dimensions, ffn_size: Size) -> Size:
    """Elements of a feed-forward part of so many inner channels."""
    return (2 + model.gated) * model.hidden_size * ffn_size


def expert_weights(model: Dimensions, mixture: Mixture) -> Size:
    """Elements of all experts of one layer, without shared ones."""
    return mixture.num_experts * ffn_weights(model, mixture.expert_ffn_size)


def mixed_layers(model: Dimensions, mixture: Mixture) -> Size:
    """Layers of the whole model that have experts."""
    return (mixture.num_experts > 0) * (model.num_layers - mixture.dense_layers)


def layer_weights(model: Dimensions) -> Size:
    """Elements of one layer's matrices; norms and biases, a share of 1 / h of it, are left out.

    Of a mixture: what every token of a layer with experts passes (attention, router, shared
    experts), without ``expert_weights``.
    """
    whole = attention_weights(model)
    mixture = model.mixture
    if mixture is None:
        return whole + ffn_weights(model, model.ffn_size)
    some = mixture.num_experts > 0
    ffn = some * mixture.shared_ffn_size + (1 - some) * model.ffn_size
    return whole + ffn_weights(model, ffn) + mixture.num_experts * model.hidden_size


def model_weights(model: Dimensions, *, active: bool = False) -> Size:
    """Elements of all layers' matrices.

    Args:
        model: the whole model.
        active: of the experts only those that one token takes.
    """
    mixture, layers = model.mixture, model.num_layers
    if mixture is None:
        return layers * layer_weights(model)
    mixed = mixed_layers(model, mixture)
    experts = mixture.experts_per_token if active else mixture.num_experts
    dense = attention_weights(model) + ffn_weights(model, model.ffn_size)
    one = layer_weights(model) + experts * ffn_weights(model, mixture.expert_ffn_size)
    return mixed * one + (layers - mixed) * dense


def table_weights(model: Dimensions) -> Size:
    """Elements of one vocabulary table: the embedding, or the output layer."""
    return model.vocab_size * model.hidden_size


def stage_weights(model: Dimensions, layers: Size, tables: Size, tp: Size = 1) -> Size:
    """Elements of a pipeline stage's matrices on one of its tensor-parallel ranks.

    Without experts: those are split otherwise.

    Args:
        model: the whole model.
        layers: that the stage has.
        tables: of the vocabulary that it has: 0, 1 or 2.
        tp: ranks that split it.
    """
    return (layers * layer_weights(model) + tables * table_weights(model)) / tp
