"""What a rank of the grid sends in a step of one stage, predicted. Torch-free.

Singh et al. 2024, algorithm 1, with what it leaves out: norms, tables and the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trainer.plan.config import TrainConfig
from trainer.plan.formats import Format
from trainer.plan.ring import all_reduce_bytes
from trainer.plan.sizes import Matrix, layer_matrices

_FLOAT32_BYTES = 4


class GridCalls(NamedTuple):
    """Collectives of one size along one axis."""

    purpose: str
    axis: str
    num_bytes: int
    """Sent by this rank in each."""
    times: int


def grid_calls(config: TrainConfig, stage: int) -> Iterator[GridCalls]:
    """Of one stage, in one step.

    Args:
        config: with ``gx``, ``gy`` and ``gz``.
        stage: its number, of ``pp * vpp``.
    """
    model = config.model
    first, last = stage == 0, stage == config.pp * config.vpp - 1
    mine = config.stages.layers(stage)
    layers = len(mine)
    again = config.recomputed(mine) if config.recompute == "full" else 0
    tokens = model.seq_length * config.mbs // config.gz
    for matrix in layer_matrices(model):
        # The repeated pass ends before the last sum of a layer, which no gradient needs.
        summed_again = 0 if matrix.name == "mlp.down" else again
        yield from _sums(config, matrix, layers + summed_again, layers, tokens)
        yield from _depth(config, matrix, layers + again, layers)
    table = Matrix("table", model.hidden_size, model.vocab_size, True)
    if last:
        # Logits are partial sums along y; the loss is the same on all ranks there.
        yield from _sums(config, table, 1, 1, tokens)
        yield from _depth(config, table, 1, 1)
        yield from _sum(config, "gx", tokens * _FLOAT32_BYTES)
        yield from _sum(config, "gx", 2 * tokens * _FLOAT32_BYTES)
    if first:
        yield from _depth(config, table, 1, 1)
        width = model.hidden_size // config.gy
        yield from _sum(config, "gx", config.format.num_bytes(tokens * width))
    if config.gy > 1:
        norms = 2 * layers
        moments = 2 * tokens * _FLOAT32_BYTES
        times = (norms + 2 * again + last) * config.gas
        yield GridCalls("tensor", "gy", (config.gy - 1) * moments, times)
        yield from _sum(config, "gy", moments, norms + last)


def _sums(
    config: TrainConfig, matrix: Matrix, forwards: int, backwards: int, tokens: int
) -> Iterator[GridCalls]:
    """Of a product: its outputs are summed where its inputs are split, and the other way round."""
    rows, columns = ("gx", "gy") if matrix.splits_outputs else ("gy", "gx")
    fmt = config.format
    outputs = tokens * matrix.outputs // getattr(config, rows)
    inputs = tokens * matrix.inputs // getattr(config, columns)
    yield from _sum(config, columns, fmt.num_bytes(outputs), forwards)
    yield from _sum(config, rows, fmt.num_bytes(inputs), backwards)


def _depth(
    config: TrainConfig, matrix: Matrix, forwards: int, backwards: int
) -> Iterator[GridCalls]:
    """Weights are gathered in each forward pass, gradients scattered in each backward pass."""
    if config.gz > 1:
        share = matrix.inputs * matrix.outputs // (config.gx * config.gy * config.gz)
        stored = Format.INT8 if config.quantize_weights else config.format
        reduced = Format(config.reduce_precision)
        for purpose, fmt, times in (
            ("weights", stored, forwards),
            ("gradients", reduced, backwards),
        ):
            size = (config.gz - 1) * fmt.num_bytes(share)
            yield GridCalls(purpose, "gz", size, times * config.gas)


def _sum(config: TrainConfig, axis: str, num_bytes: int, times: int = 1) -> Iterator[GridCalls]:
    ranks = getattr(config, axis)
    if ranks > 1:
        size = all_reduce_bytes(num_bytes, ranks)
        yield GridCalls("tensor", axis, size, times * config.gas)
