"""The price of activation offload: memory of device and host, and time over the host's link."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.cost.activations import layer_bytes
from analysis.cost.layer import LEAST_SHOWN
from analysis.cost.memory import MemoryConstants, memory
from analysis.cost.model import CostModel, Prediction
from search_spaces.cluster import Cluster
from search_spaces.known import framework_named
from support.gpt_jobs import gpt
from trainer.plan.jobs import FULL, NONE, SELECTIVE, ZERO_BUBBLE, Array, Jobs

MESHTUNE = framework_named("meshtune")
WAYS = [NONE, SELECTIVE, FULL]


def predicted(jobs: Jobs, name: str = "dgx_h100", **facts: Any) -> Prediction:
    cluster = Cluster.shipped()[name].model_copy(update=facts)
    return CostModel(cluster, MESHTUNE).predict(jobs)


def activations(jobs: Jobs) -> Array:
    return memory(jobs, MESHTUNE, MemoryConstants()).activations


@pytest.mark.parametrize("recompute", WAYS)
def test_two_layers_are_on_the_device_and_all_on_the_host(recompute: int) -> None:
    layers = np.array([12, 48])
    on, off = (
        gpt(num_layers=layers, recompute=recompute, offload_activations=moved)
        for moved in (True, False)
    )
    layer = layer_bytes(on, MESHTUNE, on.options.recompute)
    assert activations(off) - activations(on) == pytest.approx((layers - 2) * layer)
    assert predicted(on).host_bytes == pytest.approx(layers * layer)
    assert not predicted(off).host_bytes.any()


def test_micro_batches_in_flight_leave_only_their_stages_inputs() -> None:
    jobs = gpt(tp=1, pp=4, gas=16, offload_activations=True)
    layer, sent = layer_bytes(jobs, MESHTUNE, np.zeros(1)), jobs.activation_bytes
    # The first stage keeps four micro-batches of 12 layers, the second three and their inputs.
    assert activations(jobs) == pytest.approx(2 * layer + 3 * sent)
    assert predicted(jobs).host_bytes == pytest.approx(4 * 12 * layer)


def test_weight_gradients_that_wait_hold_their_inputs() -> None:
    on, off = (
        gpt(pp=4, vpp=2, gas=16, schedule=ZERO_BUBBLE, offload_activations=moved)
        for moved in (True, False)
    )
    assert activations(on) == pytest.approx(activations(off))


def test_copies_hide_behind_passes_as_far_as_the_hosts_link_lets_them() -> None:
    jobs = gpt(offload_activations=True)
    exposed = [
        predicted(jobs, host_link_gb_per_s=rate).time.offload[0] for rate in (1, 8, 32, 64, 450)
    ]
    assert exposed == sorted(exposed, reverse=True) and exposed[0] > 10 * exposed[-1]
    kept = 48 * layer_bytes(jobs, MESHTUNE, np.zeros(1))[0]
    assert exposed[-1] == pytest.approx(LEAST_SHOWN * 2 * kept / (0.8 * 450e9))
    unstated = predicted(jobs, host_link_gb_per_s=None).time.offload[0]
    assert exposed[3] < unstated < exposed[1]
    assert not predicted(gpt()).time.offload.any()


def test_recomputing_leaves_less_to_move() -> None:
    jobs = gpt(recompute=np.array(WAYS), offload_activations=True)
    none, selective, full = predicted(jobs, host_link_gb_per_s=4).time.offload
    assert none > selective > full > 0


def test_a_cpu_copies_by_itself() -> None:
    jobs = gpt(tp=1, hidden_size=64, num_heads=4, offload_activations=True, element_bytes=4)
    found = predicted(jobs, "tiny_cpu").time.offload[0]
    moved = 48 * layer_bytes(jobs, MESHTUNE, np.zeros(1))[0]
    assert found >= 4 * moved / 10e9
