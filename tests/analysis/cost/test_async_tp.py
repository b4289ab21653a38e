"""The price of asynchronous tensor parallelism: part of its exchanges hides, never all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.cost.layer import Machine, exposed_s, layer
from analysis.cost.model import CostModel, Prediction
from analysis.cost.time_constants import TimeConstants
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from support.gpt_jobs import gpt
from trainer.plan.axes import tp
from trainer.plan.exchange import Pass
from trainer.plan.jobs import FULL, NONE, Jobs

MESHTUNE = framework_named("meshtune")
BOTH = np.array([False, True])
HIDDEN = 1 - TimeConstants.exposed_fused


def predicted(jobs: Jobs, name: str = "dgx_h100", **constants: float) -> Prediction:
    model = CostModel(Cluster.shipped()[name], MESHTUNE)
    return replace(model, constants=replace(model.constants, **constants)).predict(jobs)


def split(**values: Any) -> Jobs:
    return gpt(**{"tp": 8, "dp": 1, "mbs": 4, "sequence_parallel": True, "async_tp": BOTH} | values)


@pytest.mark.parametrize("recompute", [NONE, FULL])
def test_of_a_layers_exchanges_those_are_fused_that_wait_for_a_product(recompute: int) -> None:
    plain, fused = (split(recompute=recompute, async_tp=on) for on in (False, True))
    assert not any(np.any(one.fused) for one in tp.layer_exchanges(plain, MESHTUNE))
    found: dict[tuple[str, str], float] = {}
    for one in tp.layer_exchanges(fused, MESHTUNE):
        assert np.all(one.fused <= one.times)
        if np.any(one.fused):
            found[one.within, one.operation] = float(np.asarray(one.fused).item())
    again = {("repeated", "all_gather"): 2.0, ("repeated", "reduce_scatter"): 1.0}
    assert found == {
        ("forward", "all_gather"): 2.0,
        ("forward", "reduce_scatter"): 2.0,
        ("backward", "all_gather"): 2.0,
        **(again if recompute == FULL else {}),
    }


def test_the_share_that_shows_is_the_constant_where_products_are_long() -> None:
    plain, fused = predicted(split()).time.tensor
    assert fused == pytest.approx(plain * (1 - HIDDEN * 6 / 10))  # six of ten exchanges are fused
    all_show = predicted(split(), exposed_fused=1.0).time.tensor
    assert all_show[1] == pytest.approx(all_show[0])


def test_no_more_hides_than_products_take() -> None:
    """With short products beside slow links the share is larger than the constant."""
    jobs = split(hidden_size=64, num_heads=8)
    plain, fused = predicted(jobs).time.tensor
    hidden = predicted(jobs, overlap=1e-9).time.tensor
    assert hidden[1] == pytest.approx(hidden[0])
    assert plain > fused > plain * (1 - HIDDEN * 6 / 10)


@pytest.mark.parametrize(("within", "other"), [("forward", "backward"), ("backward", "forward")])
def test_a_pass_lends_no_products_to_another(within: Pass, other: Pass) -> None:
    (one, *_) = tp.layer_exchanges(split(async_tp=True), MESHTUNE)
    few = replace(one, within=within, times=2.0, fused=2.0)
    taken, hidden = np.array([3.0]), np.array([1.0])
    for own, shown in ((hidden, 2 * 3.0 - 0.5), (100 * hidden, 0.1 * 2 * 3.0)):
        beside = {within: own, other: 100 * hidden}
        found = exposed_s([few], lambda _: taken, 0.5, beside, 0.1)
        assert found == pytest.approx(shown)


@pytest.mark.parametrize(("recompute", "passes"), [(NONE, 1 + 1 / 2), (FULL, 1 + 1 / 2 + 1)])
def test_each_pass_hides_what_its_own_products_take(recompute: int, passes: float) -> None:
    """Forward and repeated a forward pass' products, backward half of them: on links so slow that
    nothing else bounds it."""
    cluster, constants = Cluster.shipped()["dgx_h100"], TimeConstants(exposed_fused=1e-9)
    machine = Machine(cluster, MESHTUNE, constants)
    jobs = split(hidden_size=64, num_heads=8, recompute=recompute)
    plain, fused = layer(jobs, machine).tensor
    products = machine.overlap * machine.compute.forward(jobs).gemm[1]
    assert plain - fused == pytest.approx(passes * products)


@pytest.mark.parametrize(
    "values", [{"sequence_parallel": False}, {"tp": 1, "dp": 8, "sequence_parallel": False}]
)
def test_without_sequences_over_ranks_it_changes_nothing(values: dict[str, Any]) -> None:
    plain, fused = predicted(split(**values)).time.tensor
    assert fused == plain


def test_a_cpu_does_one_after_the_other() -> None:
    plain, fused = predicted(split(tp=4, element_bytes=4), "tiny_cpu").time.tensor
    assert fused == pytest.approx(plain)


def test_the_host_launches_each_ranks_part() -> None:
    """So that short layers wait for it."""
    plain, fused = tp.host_calls(split(), MESHTUNE)
    assert fused == 8 * plain
    short = split(hidden_size=64, num_heads=8, mbs=1)
    plain, fused = predicted(short, host_call_s=1e-3).time.launch
    assert fused > 5 * plain


def test_its_workspace_of_two_ranks_shares_is_outside_the_allocator() -> None:
    found = predicted(split()).memory
    plain, fused = found.framework
    assert fused - plain == 2 * (2048 * 4 * 6144 * 2) / 8
    assert found.total[1] - found.total[0] == fused - plain
