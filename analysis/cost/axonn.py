"""Communication of AxoNN's four-dimensional algorithm: equations 1 to 7 of Singh et al. 2024, V-B.

Ranks form a grid of Gx * Gy * Gz * Gdata, x innermost. A fully connected layer multiplies an input
of m x k by weights of k x n: the weights are split over x and y and, until they are used, over z;
the input's rows over z and, between replicas, over data. The equations count bytes over the
bandwidth of each group; starts and overlap are left out, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from analysis.cost.collectives import LinkConstants, bus_bytes_per_s
from search_spaces.cluster import Cluster

from .constants import Array
from .groups import group_of


@dataclass(frozen=True)
class Grid:
    """Columns: sizes of the groups, innermost first."""

    gx: Array
    gy: Array
    gz: Array
    gdata: Array


@dataclass(frozen=True)
class Layer:
    """One fully connected layer.

    Attributes:
        m: rows of the input that one of the gdata replicas has; a number, or a column.
        k, n: the weights' rows and columns.
        transposed: x and y change places, so that the output of the layer before need not move.
    """

    m: ArrayLike
    k: float
    n: float
    transposed: bool = False


@dataclass(frozen=True)
class Bandwidths:
    """Columns: bytes/s of the groups of each dimension; inf for groups of one."""

    x: Array
    y: Array
    z: Array
    data: Array


@dataclass(frozen=True)
class Volumes:
    """Columns: bytes that a rank of the ring sends in each collective of one layer."""

    all_gather_z: Array
    reduce_scatter_z: Array
    all_reduce_y: Array
    all_reduce_x: Array
    all_reduce_data: Array


def grid_of(gx: ArrayLike, gy: ArrayLike, gz: ArrayLike, gdata: ArrayLike) -> Grid:
    """A grid from numbers or columns that broadcast against each other."""
    columns = [np.atleast_1d(np.asarray(g, np.float64)) for g in (gx, gy, gz, gdata)]
    return Grid(*np.broadcast_arrays(*columns))


def volumes(grid: Grid, layer: Layer, element_bytes: float = 2) -> Volumes:
    """What equations 1 to 5 divide by the bandwidth; bytes.

    Args:
        element_bytes: of weights, activations and gradients on their way.
    """
    gx, gy = (grid.gy, grid.gx) if layer.transposed else (grid.gx, grid.gy)
    gz, gdata = grid.gz, grid.gdata
    m, k, n = np.asarray(layer.m, np.float64), layer.k, layer.n
    weights = element_bytes * k * n / (gx * gy)
    return Volumes(
        all_gather_z=(gz - 1) * weights / gz,
        reduce_scatter_z=(gz - 1) / gz * weights,
        all_reduce_y=2 * (gy - 1) / gy * element_bytes * m * n / (gz * gx),
        all_reduce_x=2 * (gx - 1) / gx * element_bytes * m * k / (gz * gy),
        all_reduce_data=2 * (gdata - 1) / gdata * weights / gz,
    )


def bandwidths(cluster: Cluster, constants: LinkConstants, grid: Grid) -> Bandwidths:
    """Of the groups of each dimension: measured inside a node, equation 7 between nodes.

    The paper's database is the cluster's ``measured`` entries: (G0, G1) is a group of G1 ranks at a
    stride of G0. Groups without an entry have the nominal link's.
    """
    strides = np.cumprod([np.ones_like(grid.gx), grid.gx, grid.gy, grid.gz], axis=0)
    sizes = (grid.gx, grid.gy, grid.gz, grid.gdata)
    return Bandwidths(
        *[
            bus_bytes_per_s(cluster, constants, group_of(size, stride))
            for size, stride in zip(sizes, strides, strict=True)
        ]
    )


def layer_s(
    grid: Grid, layer: Layer, bandwidth: Bandwidths, element_bytes: float = 2
) -> dict[str, Array]:
    """Equations 1 to 5: seconds of each collective of one layer. Their sum is equation 6.

    Groups keep their place in the hierarchy when a transposed layer swaps their roles, so its
    all-reduces swap bandwidths too.
    """
    sent = volumes(grid, layer, element_bytes)
    along_x, along_y = bandwidth.x, bandwidth.y
    if layer.transposed:
        along_x, along_y = along_y, along_x
    return {
        "all_gather_z": sent.all_gather_z / bandwidth.z,
        "reduce_scatter_z": sent.reduce_scatter_z / bandwidth.z,
        "all_reduce_y": sent.all_reduce_y / along_y,
        "all_reduce_x": sent.all_reduce_x / along_x,
        "all_reduce_data": sent.all_reduce_data / bandwidth.data,
    }


def communication_s(
    cluster: Cluster,
    constants: LinkConstants,
    grid: Grid,
    layers: Sequence[Layer],
    element_bytes: float = 2,
) -> Array:
    """Seconds of communication per batch: equation 6, summed over the layers."""
    bandwidth = bandwidths(cluster, constants, grid)
    total: Array = np.zeros_like(grid.gx)
    for layer in layers:
        for taken in layer_s(grid, layer, bandwidth, element_bytes).values():
            total = total + taken
    return total


def transformer_layers(tokens: ArrayLike, hidden_size: float, ffn_size: float) -> list[Layer]:
    """The fully connected layers of a GPT layer, every second one transposed.

    Args:
        tokens: rows that one replica has per batch.
    """
    h, f = hidden_size, ffn_size
    return [
        Layer(tokens, h, 3 * h),
        Layer(tokens, h, h, transposed=True),
        Layer(tokens, h, f),
        Layer(tokens, f, h, transposed=True),
    ]
