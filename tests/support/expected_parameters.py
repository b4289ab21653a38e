"""A pipeline stage's parameters, by name, shape and traits, without building it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from trainer.plan.model import ModelConfig
from trainer.plan.shards import Shape, Traits
from trainer.plan.sizes import Latent, Matrix, latent_matrices, layer_matrices


class Parameter(NamedTuple):
    """One parameter of a tensor-parallel rank."""

    name: str
    """In the whole model."""
    shape: Shape
    """Shape of this rank's part."""
    traits: Traits

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Ranks:
    """Degrees that split a replica's layers: tensor parallelism's, or the grid's."""

    tp: int = 1
    gx: int = 1
    gy: int = 1
    gz: int = 1
    ep: int = 1

    def parameter(
        self,
        name: str,
        *shape: int,
        rows: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
        shared: bool = False,
        copy: bool = False,
    ) -> Parameter:
        """One rank's part of a parameter whose rows and columns are split along these axes."""
        by = {axis: getattr(self, axis) for axis in (*rows, *columns)}
        split = tuple(sorted(axis for axis, size in by.items() if size > 1))
        first, *others = shape
        width = math.prod(by[axis] for axis in columns)
        part = (first // math.prod(by[axis] for axis in rows), *(n // width for n in others))
        return Parameter(name, part, Traits(split, len(shape) > 1, shared, copy))


ONE = Ranks()
_X, _Y = ("tp", "gx"), ("gy",)
"""Outputs of a layer lie along the first, inputs along the second; in every second layer the other
way round. Hidden states lie as the first layer's inputs."""


def stage_parameters(
    model: ModelConfig,
    index: int = 0,
    num_stages: int = 1,
    ranks: Ranks = ONE,
    layers: range | None = None,
) -> list[list[Parameter]]:
    """Parameters of ``model.transformer.Stage``, in the order of its modules.

    Args:
        model: the whole model.
        index: of the stage.
        num_stages: of the whole model.
        ranks: that split it.
        layers: of the stage; default an equal share.

    Returns:
        The units that FSDP2 gathers: one for each layer, before it one for its experts if these
        are dealt out; in a pipeline one for the embedding and one for the head, where the stage has
        them; last what is outside of these, if anything.
    """
    first, last = index == 0, index == num_stages - 1
    pipelined = num_stages > 1
    tied = model.tied_embeddings and pipelined
    hidden = model.hidden_size

    def table(name: str, copy: bool) -> Parameter:
        size = (model.vocab_size, hidden)
        by = {"rows": (*_X, "gz"), "columns": _Y}
        return ranks.parameter(name, *size, **by, shared=tied, copy=copy)

    embedding, positions, head = [], [], []
    if first:
        embedding = [table("embedding.weight", False)]
        if model.positions == "learned":
            shape = (model.seq_length, hidden)
            positions = [ranks.parameter("positions.weight", *shape, columns=_Y)]
    if last and (pipelined or not model.tied_embeddings):
        head = [table("head.weight", tied)]
    norm = _norm(model, "norm", ranks) if last else []
    each = model.num_layers // num_stages
    held = layers or range(index * each, (index + 1) * each)
    blocks = [unit for layer in held for unit in _block(model, layer, ranks)]
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


def _norm(model: ModelConfig, name: str, ranks: Ranks) -> list[Parameter]:
    names = ("weight", "bias") if model.norm == "layernorm" else ("weight",)
    return [ranks.parameter(f"{name}.{part}", model.hidden_size, rows=_Y) for part in names]


def _block(model: ModelConfig, layer: int, ranks: Ranks) -> list[list[Parameter]]:
    name, mixture = f"blocks.{layer}", model.mixture
    qkv, out, up, down = (_linear(model, name, matrix, ranks) for matrix in layer_matrices(model))
    inner = [*qkv, *out] if model.latent is None else _latent(model, name, model.latent, ranks)
    attention = [*_norm(model, f"{name}.attention_norm", ranks), *inner]
    norms = _norm(model, f"{name}.mlp_norm", ranks)
    if mixture is None or layer < mixture.dense_layers:
        return [[*attention, *norms, *up, *down]]
    hidden, size = model.hidden_size, mixture.expert_ffn_size
    routed = []
    for part, rows, columns in (("up", (1 + model.gated) * size, hidden), ("down", hidden, size)):
        number = mixture.num_experts // ranks.ep
        split = tuple(axis for axis in ("ep", "tp") if getattr(ranks, axis) > 1)
        traits = Traits(split, True, False, False)
        path = f"{name}.mlp.experts.{part}.weight"
        routed.append(Parameter(path, (number * rows, columns), traits))
    router = ranks.parameter(f"{name}.mlp.router.weight", mixture.num_experts, hidden)
    width, shared = mixture.shared_ffn_size, []
    for matrix in (
        Matrix("mlp.shared.up", hidden, (1 + model.gated) * width, True),
        Matrix("mlp.shared.down", width, hidden, False),
    ):
        shared += _linear(model, name, matrix, ranks) if width else []
    if ranks.ep > 1:
        return [routed, [*attention, *norms, router, *shared]]
    return [[*attention, *norms, router, *routed, *shared]]


def _latent(model: ModelConfig, name: str, latent: Latent, ranks: Ranks) -> list[Parameter]:
    """Latent attention: what goes down is whole on each rank, as are the norms behind it."""
    found: list[Parameter] = []
    norms = {"q_down": "query_norm", "kv_down": "key_value_norm"}
    ranks_of = {"q_down": latent.query_rank, "kv_down": latent.key_value_rank}
    for matrix in latent_matrices(model, latent):
        part = matrix.name.removeprefix("attention.")
        if part not in norms:
            found += _linear(model, name, matrix, ranks)
        elif matrix.outputs:
            found += _linear(model, name, matrix, ONE)
            path = f"{name}.attention.{norms[part]}.weight"
            found.append(ONE.parameter(path, ranks_of[part]))
    return found


def _linear(model: ModelConfig, block: str, matrix: Matrix, ranks: Ranks) -> list[Parameter]:
    """Weight and bias of a layer's matrix; a bias is split where the outputs are."""
    name = f"{block}.{matrix.name}"
    rows, columns = (_X, _Y) if matrix.splits_outputs else (_Y, _X)
    shape = (matrix.outputs, matrix.inputs)
    weight = ranks.parameter(f"{name}.weight", *shape, rows=(*rows, "gz"), columns=columns)
    if not model.linear_bias:
        return [weight]
    return [weight, ranks.parameter(f"{name}.bias", matrix.outputs, rows=rows)]
