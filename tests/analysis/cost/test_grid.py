"""The grid's exchanges are those of Singh et al. 2024, section V-B, and have a price."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from analysis.cost.groups import members_per_node
from analysis.cost.model import CostModel
from foundation.documents import read_document
from foundation.records import validate
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from search_spaces.shipped import SHIPPED
from support.expected_traffic import once_bytes
from trainer.plan.axes.grid import gy_exchanges, gz_exchanges
from trainer.plan.exchange import Exchange
from trainer.plan.jobs import FULL, SELECTIVE, Jobs, jobs
from trainer.plan.model import ModelConfig
from trainer.plan.sizes import layer_matrices

MESHTUNE = framework_named("meshtune")


def _sent(exchange: Exchange) -> Any:
    return once_bytes(exchange) * exchange.times


MODEL = ModelConfig(
    num_layers=24, hidden_size=4096, num_heads=32, vocab_size=51200, seq_length=2048
)
GRIDS = [g for g in itertools.product((1, 2, 4, 8, 16, 32), repeat=4) if np.prod(g) == 32]


def grid_jobs(**more: Any) -> Jobs:
    gx, gy, gz, dp = np.array(GRIDS).T
    columns = {"tp": gx, "gy": gy, "gz": gz, "dp": dp, "pp": 1, "mbs": 32, "gas": 1}
    return jobs({**columns, "zero_stage": 0, **more}, MODEL)


def test_a_layers_exchanges_are_equations_1_to_4() -> None:
    """Elements that a rank sends; k inputs, n outputs, m tokens, gx and gy swapped every second."""
    found = grid_jobs()
    m = found.layout.mbs * found.model.seq_length
    expected = np.zeros((2, len(found)))
    for matrix in layer_matrices(MODEL):
        k, n, gz = matrix.inputs, matrix.outputs, found.layout.gz
        gx, gy = found.layout.tp, found.layout.gy
        inputs, outputs = (gy, gx) if matrix.splits_outputs else (gx, gy)
        forward = 2 * (inputs - 1) / inputs * m * n / (gz * outputs)
        backward = 2 * (outputs - 1) / outputs * m * k / (gz * inputs)
        expected[0] += (gz - 1) * k * n / (gx * gy * gz)
        expected[1] += forward if matrix.splits_outputs else backward  # along gy
    gathered, again, scattered = gz_exchanges(found, MESHTUNE)
    assert _sent(gathered) == pytest.approx(2 * expected[0])
    assert not _sent(again).any()
    assert _sent(scattered) == pytest.approx(MESHTUNE.reduce_bytes * expected[0])
    along_y = sum(_sent(one) for one in gy_exchanges(found, MESHTUNE))
    assert along_y == pytest.approx(2 * expected[1])


def test_groups_across_nodes_share_the_adapters_as_in_equation_7() -> None:
    """Each ring has 1 / min(G_node, product of the axes inside) of what its node sends."""
    cluster = validate(Cluster, read_document(SHIPPED / "clusters" / "perlmutter.yaml"))
    found = grid_jobs()
    for name in ("tp", "gy", "gz", "dp"):
        group = found.layout.axes.group(name)
        across = (group.size > 1) & (group.size * group.stride > cluster.gpus_per_node)
        share = members_per_node(cluster, group) / cluster.gpus_per_node
        expected = 1 / np.minimum(cluster.gpus_per_node, group.stride)
        assert share[across] == pytest.approx(expected[across])


def test_the_grids_first_axis_alone_costs_what_tensor_parallelism_does() -> None:
    """And axes of one rank cost nothing, in bytes and in seconds."""
    plain = jobs({"tp": 4, "dp": 8, "pp": 1, "mbs": 1, "gas": 4, "zero_stage": 1}, MODEL)
    sent = (*gy_exchanges(plain, MESHTUNE), *gz_exchanges(plain, MESHTUNE))
    assert [_sent(one) for one in sent] == [0] * len(sent)


def test_a_grid_repeats_attention_where_tensor_parallelism_keeps_products() -> None:
    either = grid_jobs(recompute=SELECTIVE, on_grid=True)
    plain = grid_jobs(recompute=SELECTIVE)
    alone = (plain.layout.gy * plain.layout.gz == 1) & (plain.layout.tp > 1)
    model = CostModel(Cluster.named("frontier"), MESHTUNE)
    on_grid, as_tensor = (model.predict(of[alone]) for of in (either, plain))
    assert (on_grid.memory.activations > as_tensor.memory.activations).all()
    of_all_ranks = on_grid.time.recompute * plain.layout.tp[alone]  # attention is split whole
    np.testing.assert_allclose(of_all_ranks, of_all_ranks[0])
    assert as_tensor.time.recompute[-1] > 2 * on_grid.time.recompute[-1]


def test_a_searched_grid_is_priced_and_its_axes_change_the_price() -> None:
    cluster = validate(Cluster, read_document(SHIPPED / "clusters" / "perlmutter.yaml"))
    found = grid_jobs(recompute=FULL)
    step = CostModel(cluster, MESHTUNE).predict(found)
    assert np.all(np.isfinite(step.step_time_s)) and np.all(step.step_time_s > 0)
    one = (found.layout.tp == 1) & (found.layout.gy == 1)
    whole, cut = (step.peak_bytes[one & (found.layout.gz == gz)].item() for gz in (1, 32))
    assert whole / cut > 8
    assert len(np.unique(step.step_time_s.round(6))) > len(found) * 0.9
