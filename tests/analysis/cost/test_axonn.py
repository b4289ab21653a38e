"""Equations 1 to 7 of Singh et al. 2024 by hand, and the bandwidths that the authors publish."""

from __future__ import annotations

import csv
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from analysis.cost.axonn import (
    Layer,
    bandwidths,
    communication_s,
    grid_of,
    layer_s,
    transformer_layers,
    volumes,
)
from analysis.cost.collectives import bus_bytes_per_s
from analysis.cost.groups import LinkConstants, group_of
from search_spaces.cluster import Cluster
from search_spaces.language.document import read
from search_spaces.language.messages import validate
from search_spaces.load import SHIPPED

TRUTH = Path(__file__).parents[4] / "shared" / "truth" / "axonn_bandwidth.csv"
NOMINAL = LinkConstants(node_share=1, inter_node_share=1)


def shipped_cluster(name: str) -> Cluster:
    return validate(Cluster, read(SHIPPED / "clusters" / f"{name}.yaml"))


def test_equations_1_to_5_count_these_bytes() -> None:
    """m, k, n = 48, 24, 96 on a grid of 2 x 3 x 4 x 5; 1 byte an element, so elements.

    kn / (Gx Gy) = 384 and mn / (Gz Gx) = 576, mk / (Gz Gy) = 96.
    """
    sent = volumes(grid_of(2, 3, 4, 5), Layer(48, 24, 96), element_bytes=1)
    assert sent.all_gather_z == pytest.approx(3 * 96)
    assert sent.reduce_scatter_z == pytest.approx(3 / 4 * 384)
    assert sent.all_reduce_y == pytest.approx(2 * 2 / 3 * 576)
    assert sent.all_reduce_x == pytest.approx(2 * 1 / 2 * 96)
    assert sent.all_reduce_data == pytest.approx(2 * 4 / 5 * 96)


def test_a_transposed_layer_swaps_x_and_y() -> None:
    plain = volumes(grid_of(2, 3, 4, 5), Layer(48, 24, 96))
    swapped = volumes(grid_of(3, 2, 4, 5), Layer(48, 24, 96, transposed=True))
    assert astuple(plain) == astuple(swapped)


def test_each_volume_is_sent_over_the_bandwidth_of_its_own_groups() -> None:
    """Equation 6 is the sum; the groups along x stay innermost when their role is y's."""
    cluster, grid = shipped_cluster("perlmutter"), grid_of(2, 2, 4, 8)
    bandwidth = bandwidths(cluster, NOMINAL, grid)
    assert bandwidth.x == pytest.approx(76e9) and bandwidth.y == pytest.approx(76e9)
    assert bandwidth.z == pytest.approx(25e9) and bandwidth.data == pytest.approx(25e9)
    wide = grid_of(4, 8, 1, 1)
    bandwidth = bandwidths(cluster, NOMINAL, wide)
    for layer in (Layer(64, 32, 16), Layer(64, 32, 16, transposed=True)):
        sent, taken = volumes(wide, layer), layer_s(wide, layer, bandwidth)
        inner, outer = (225e9, 25e9)
        y, x = (inner, outer) if layer.transposed else (outer, inner)
        assert taken["all_reduce_y"] == pytest.approx(sent.all_reduce_y / y)
        assert taken["all_reduce_x"] == pytest.approx(sent.all_reduce_x / x)
        total = sum(taken.values())
        assert communication_s(cluster, NOMINAL, wide, [layer, layer]) == pytest.approx(2 * total)


def test_the_two_rings_of_figures_3_and_4_share_the_adapters() -> None:
    """Eight GPUs on two nodes: one ring of all has beta_inter, two rings of four half of it."""
    cluster = shipped_cluster("perlmutter")
    assert bandwidths(cluster, NOMINAL, grid_of(8, 1, 1, 1)).x == pytest.approx(100e9)
    assert bandwidths(cluster, NOMINAL, grid_of(2, 4, 1, 1)).y == pytest.approx(50e9)


def test_a_grid_with_z_alone_sends_what_sharded_data_parallelism_does() -> None:
    """Each weight gathered once and its gradient scattered once, (G - 1) / G of them per rank."""
    sent = volumes(grid_of(1, 1, 8, 1), Layer(100, 40, 60))
    assert sent.all_gather_z == sent.reduce_scatter_z == pytest.approx(7 / 8 * 2 * 40 * 60)
    assert sent.all_reduce_x == sent.all_reduce_y == sent.all_reduce_data == 0


def test_a_grid_with_x_alone_sends_what_megatron_does() -> None:
    """Four all-reduces of tokens x hidden in every transformer layer, forward and backward."""
    grid, tokens, hidden = grid_of(4, 1, 1, 1), 128, 64
    sent = 0.0
    for layer in transformer_layers(tokens, hidden, 4 * hidden):
        sent += float(sum(np.sum(volume) for volume in astuple(volumes(grid, layer))))
    assert sent == pytest.approx(4 * 2 * (3 / 4) * 2 * tokens * hidden)


def test_one_gpu_does_not_communicate_and_columns_agree_with_single_grids() -> None:
    cluster = shipped_cluster("frontier")
    layers = transformer_layers(4096, 6144, 24576)
    sides = np.array([(1, 1, 1, 1), (2, 2, 2, 4), (1, 8, 4, 2), (64, 1, 1, 1)], float).T
    together = communication_s(cluster, NOMINAL, grid_of(*sides), layers)
    alone = [communication_s(cluster, NOMINAL, grid_of(*one), layers)[0] for one in sides.T]
    assert together.tolist() == pytest.approx(alone)
    assert together[0] == 0 and np.all(together[1:] > 0)


@pytest.mark.parametrize("name", ["perlmutter", "frontier"])
def test_the_authors_bandwidths_are_the_clusters_and_equation_7s(name: str) -> None:
    """Inside a node as measured; between nodes beta_inter / min(G_node, inner), one number each.

    The authors round beta_inter to 80 and 40 GB/s.
    """
    if not TRUTH.exists():
        pytest.skip("the measured table axonn_bandwidth.csv is not here")
    with TRUTH.open() as lines:
        table = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    cluster = shipped_cluster(name)
    nodes_share = {"perlmutter": 0.8, "frontier": 0.4}[name]
    constants = LinkConstants(inter_node_share=nodes_share)
    rows = [row for row in table if row["machine"] == name]
    assert len(rows) >= 6
    for row in rows:
        inner = int(row["inner"].lstrip(">="))
        size = 64 if row["group"] == "any" or row["group"][0] == ">" else int(row["group"])
        bandwidth = bus_bytes_per_s(cluster, constants, group_of(size, inner))
        assert bandwidth == pytest.approx(float(row["GBps"]) * 1e9), row
