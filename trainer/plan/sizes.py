"""Sizes of a transformer's matrices, for one model or columns of models. Torch-free.

The one place that counts weights: for the trainer's parameters, FLOPs and the cost model's memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

Size = Any  # int, or a numpy column that broadcasts against the others


class Mixture(NamedTuple):
    num_experts: Size  # routed experts per layer; 0 in a column: none
    experts_per_token: Size  # top-k of the router
    expert_ffn_size: Size  # f of one expert
    shared_ffn_size: Size  # f of all shared experts together; 0: none
    dense_layers: Size  # layers with an ordinary feed-forward part
    capacity: Size  # rows computed per routed token; 1: none dropped, none padded


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1)."""

    query_rank: Size  # low rank of queries; 0: one full matrix
    key_value_rank: Size  # low rank of keys and values; 0 in a column: no latent attention
    key_size: Size  # channels per head and key without rotary positions
    rotary_size: Size  # rotary channels; their key is shared by all heads
    value_size: Size  # channels per head and value


class Dimensions(Protocol):
    """Shape of a model: a ``ModelConfig``, or the columns of ``Jobs``."""

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
    """One matrix of a transformer layer."""

    name: str  # in ``trainer.model.transformer``
    inputs: Size
    outputs: Size
    splits_outputs: bool  # column-parallel in Megatron's terms; else row-parallel


def layer_matrices(model: Dimensions) -> tuple[Matrix, ...]:
    """Matrices of a dense layer: QKV, attention output, up (and gate), down."""
    hidden, ffn, queries = model.hidden_size, model.ffn_size, model.attention_size
    return (
        Matrix("attention.qkv", hidden, queries + 2 * model.kv_heads * model.head_dim, True),
        Matrix("attention.out", queries, hidden, False),
        Matrix("mlp.up", hidden, (1 + model.gated) * ffn, True),
        Matrix("mlp.down", ffn, hidden, False),
    )


def latent_matrices(model: Dimensions, latent: Latent) -> tuple[Matrix, ...]:
    """Matrices of latent attention: down to the ranks, up to the heads, output.

    Down projections are replicated over tp. Without a query rank the first matrix is empty, and the
    second starts from the hidden size.
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
    """Elements of a feed-forward part of inner size ``ffn_size``."""
    return (2 + model.gated) * model.hidden_size * ffn_size


def expert_weights(model: Dimensions, mixture: Mixture) -> Size:
    """Elements of one layer's routed experts."""
    return mixture.num_experts * ffn_weights(model, mixture.expert_ffn_size)


def mixed_layers(model: Dimensions, mixture: Mixture) -> Size:
    return (mixture.num_experts > 0) * (model.num_layers - mixture.dense_layers)


def layer_weights(model: Dimensions) -> Size:
    """Elements of one layer's matrices, without norms and biases (about 1 / h of it).

    With experts: attention, router and shared experts, without ``expert_weights``.
    """
    whole = attention_weights(model)
    mixture = model.mixture
    if mixture is None:
        return whole + ffn_weights(model, model.ffn_size)
    some = mixture.num_experts > 0
    ffn = some * mixture.shared_ffn_size + (1 - some) * model.ffn_size
    return whole + ffn_weights(model, ffn) + mixture.num_experts * model.hidden_size


def model_weights(model: Dimensions, *, active: bool = False) -> Size:
    """Elements of all layers' matrices; ``active``: routed experts count per token."""
    mixture, layers = model.mixture, model.num_layers
    if mixture is None:
        return layers * layer_weights(model)
    mixed = mixed_layers(model, mixture)
    experts = mixture.experts_per_token if active else mixture.num_experts
    dense = attention_weights(model) + ffn_weights(model, model.ffn_size)
    one = layer_weights(model) + experts * ffn_weights(model, mixture.expert_ffn_size)
    return mixed * one + (layers - mixed) * dense


def table_weights(model: Dimensions) -> Size:
    """Elements of one vocabulary table: embedding or output layer."""
    return model.vocab_size * model.hidden_size


def stage_weights(model: Dimensions, layers: Size, tables: Size, tp: Size = 1) -> Size:
    """Elements of ``layers`` layers and vocabulary ``tables`` per tp rank, routed experts apart."""
    return (layers * layer_weights(model) + tables * table_weights(model)) / tp
