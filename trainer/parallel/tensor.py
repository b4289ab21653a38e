"""Tensor parallelism (Shoeybi et al. 2019) and sequence parallelism (Korthikanti et al. 2022).

Unlike torch's styles, which hold DTensors, these hold plain local tensors and call the collectives
themselves: an input's gradient is summed while the weight's is computed, sequence parallelism keeps
only a shard of the input for the backward pass, and there is no dispatch overhead.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.model.experts import Stacked
from trainer.model.kernels import Bias, Kernels
from trainer.model.linear import Linear
from trainer.model.slices import Cut, Split
from trainer.model.transformer import Embedding, Head, Positions, Stage
from trainer.parallel.collectives import Group
from trainer.parallel.mesh import Mesh
from trainer.parallel.operators import column_linear, named, row_linear
from trainer.parallel.products import Shared, Sum, TensorParallel
from trainer.plan.config import TrainConfig


class ColumnLinear(torch.autograd.Function):
    """x W^T with W's rows over the ranks, if any."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Bias, by: TensorParallel) -> Tensor:
        ctx.by, ctx.has_bias = by, bias is not None
        ctx.parameter = weight  # the saved one may be a view of a copy, if layers are recomputed
        ctx.save_for_backward(x, weight)
        return by.column_outputs(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return *ctx.by.column_backward(grad, x, weight, ctx.parameter, ctx.has_bias), None


class _FusedRow(torch.autograd.Function):
    """Zeros that carry the gradients of a share of x W^T, with W's columns over the ranks.

    The share itself is computed after this: recomputation stops at the tensors saved here.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, by: TensorParallel) -> Tensor:
        ctx.by, ctx.parameter = by, weight
        ctx.save_for_backward(x, weight)
        zeros = torch.zeros((), dtype=x.dtype, device=x.device)
        return zeros.expand(x.size(0) // by.group.size, x.size(1), weight.size(0))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.by.row_backward(grad, *ctx.saved_tensors, ctx.parameter), None


def look_up(tokens: Tensor, weight: Tensor, group: Group | None, sequence: bool) -> Tensor:
    """Vectors of tokens, from a table whose rows are over the ranks, if any."""
    if group is None:
        return F.embedding(tokens, weight)
    rows = weight.size(0)
    local = tokens - group.rank * rows
    outside = (local < 0) | (local >= rows)
    partial = F.embedding(local.masked_fill(outside, 0), weight)
    return Sum.apply(partial.masked_fill(outside[..., None], 0.0), group, sequence)


def split(module: nn.Module, splits: dict[str, Split]) -> None:
    """Shrink parameters without storage (meta device) to one rank's shard, noted in ``splits``."""
    for name, by in splits.items():
        parameter = getattr(module, name)
        if parameter is not None:
            rows, *columns = parameter.shape
            shape = (rows // (by.rows.ranks * by.again.ranks),)
            shape += tuple(size // by.columns.ranks for size in columns)
            setattr(module, name, nn.Parameter(parameter.new_empty(shape)))
    module.splits = splits


def split_over_tp(dims: dict[str, int], cut: Cut) -> dict[str, Split]:
    by_dim = {0: Split(("tp",), rows=cut), 1: Split(("tp",), columns=cut)}
    return {name: by_dim[dim] for name, dim in dims.items()}


class Style:
    """Split of a module over a group, if any; ``opaque``: projections are custom operators."""

    dims: dict[str, int] = {}  # noqa: RUF012 - constant per class

    def __init__(self, by: TensorParallel, opaque: bool = False) -> None:
        self.by, self.group, self.sequence = by, by.group, by.sequence
        self.name = named(by) if opaque else None
        self.sharing = by.group.size if by.sequence else 1  # ranks that split a sequence

    def apply(self, module: nn.Module) -> None:
        if self.group is not None:
            split(module, split_over_tp(self.dims, Cut(self.group.rank, self.group.size)))
        if isinstance(module, Linear):
            # One object for all layers, so that they share a compiled graph.
            module.split = self
        else:
            module.forward = functools.partial(self.product, module)

    def product(self, module: Any, *inputs: Any) -> Tensor:
        """Replaces the module's ``forward``; computed over the group."""
        raise NotImplementedError


class ColumnParallel(Style):
    """Output features split over the ranks; without a group, whole on each."""

    dims = {"weight": 0, "bias": 0}  # noqa: RUF012

    def product(self, module: Linear, x: Tensor) -> Tensor:
        weight, bias = module.weight, module.bias
        if self.name is not None:
            return column_linear(x, weight, bias, self.name, self.sharing)
        return ColumnLinear.apply(x, weight, bias, self.by)


class RowParallel(Style):
    """Input features split over the ranks; the bias is whole, and added after the sum."""

    dims = {"weight": 1}  # noqa: RUF012

    def product(self, module: Linear, x: Tensor) -> Tensor:
        if self.name is not None:
            total = row_linear(x, module.weight, self.name, self.sharing)
        elif self.group.fused:
            zeros = _FusedRow.apply(x, module.weight, self.by)
            weight = module.weight.detach().t()
            total = self.group.product_scatter(x.detach(), weight).add_(zeros)
        else:
            kernels = self.by.kernels
            if kernels.own_gradients:
                partial = ColumnLinear.apply(x, module.weight, None, self.by.alone)
            else:  # autograd's own gradients are cheaper
                partial = kernels.outputs(x, module.weight)
            total = Sum.apply(partial, self.group, self.sequence)
        return total if module.bias is None else total + module.bias


class SharedKey(Style):
    """Channels that the heads of all ranks read."""

    def product(self, module: nn.Module, x: Tensor) -> Tensor:
        return Shared.apply(x, self.group, self.sequence)


class VocabParallelEmbedding(Style):
    """Rows of the token embedding over the ranks."""

    dims = {"weight": 0}  # noqa: RUF012

    def product(self, module: Embedding, tokens: Tensor) -> Tensor:
        return look_up(tokens, module.weight, self.group, self.sequence)


class VocabParallelHead(Style):
    """Logits of a rank's share of the vocabulary."""

    dims = {"weight": 0}  # noqa: RUF012

    def product(self, module: Head, x: Tensor, tied: Tensor | None) -> Tensor:
        weight = module.weight if tied is None else tied
        return ColumnLinear.apply(x, weight, None, self.by)


class SequencePositions(Style):
    """Learned positions of a rank's share of the sequence; the table itself is whole."""

    def product(self, module: Positions, x: Tensor, positions: Tensor | None = None) -> Tensor:
        rows = module.rows(positions)
        if self.sequence:
            rows = rows.narrow(0, self.group.rank * x.size(0), x.size(0))
        return x + rows


def compute_by(kernels: Kernels, stage: Stage, opaque: bool) -> None:
    """Make a stage that no axis splits compute its projections and logits with ``kernels``."""
    alone = TensorParallel(None, False, kernels)
    styles: dict[type[nn.Module], Style] = {
        Linear: ColumnParallel(alone, opaque),
        Head: VocabParallelHead(alone),
    }
    for module in stage.modules():
        if type(module) in styles:
            styles[type(module)].apply(module)


def parallelize(stage: Stage, mesh: Mesh, config: TrainConfig, kernels: Kernels) -> None:
    """Split a stage without storage (meta device) over tensor-parallel ranks.

    Norms, biases after a sum and learned positions stay whole; with sequence parallelism their
    gradients are partial sums, added up once a step. Projections are custom operators for the
    compiler.
    """
    over = TensorParallel(mesh.tp.group, config.sequence_parallel, kernels)
    column, row = (kind(over, config.compile) for kind in (ColumnParallel, RowParallel))
    whole = ColumnParallel(over.alone, config.compile)  # all features, of each rank's tokens
    styles: dict[str, Style] = {
        "embedding": VocabParallelEmbedding(over),
        "positions": SequencePositions(over),
        "head": VocabParallelHead(over),
        "shared_key": SharedKey(over),
        **dict.fromkeys(("qkv", "q_up", "kv_up", "up"), column),
        **dict.fromkeys(("out", "down"), row),
        **dict.fromkeys(("q_down", "kv_down", "gate"), whole),
    }
    for path, module in stage.named_modules():
        style = styles.get(path.rpartition(".")[2])
        if style is not None and not isinstance(module, Stacked):  # a routed expert is not split
            style.apply(module)
