"""A cluster file says what was measured, and what data sheets state."""

from __future__ import annotations

import pytest

from analysis.preflight.file import Preflight
from search_spaces.cluster import Cluster
from support.preflight_results import H100, WHEN, preflight_result, written


def test_a_known_gpu_has_its_data_sheet_and_the_figures_measured() -> None:
    found = Preflight(preflight_result(), "hal")
    machine, dgx = written(found.file(WHEN)), Cluster.shipped()["dgx_h100"]
    assert machine.peak_bf16_tflops == dgx.peak_bf16_tflops
    assert (machine.memory_gb_per_s, machine.power_watts) == (3350, 700)
    assert (machine.links, machine.nic) == (dgx.links, dgx.nic)
    assert machine.gemm_bf16_tflops == 700
    assert [c.bus_gb_per_s for c in machine.measured] == [360, 330]
    assert found.data_sheet().links == dgx.links
    assert machine.source == "meshtune preflight, 2026-01-02, n1, torch 2.13.0, NCCL 2.27.3"


@pytest.mark.parametrize(
    ("name", "memory_gib", "units", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 79.25, 108, 312),
        ("NVIDIA A100-SXM4-40GB", 39.4, 108, 312),
        ("AMD Instinct MI250X", 63.98, 110, 191.5),
        ("NVIDIA H200", 139.8, 132, 989),
        ("NVIDIA GH200 120GB", 94.5, 132, 989),
        ("Tesla V100-SXM2-32GB", 31.7, 80, 125),
        ("NVIDIA H100 PCIe", 79.1, 114, 700),  # another chip: what was measured
        ("NVIDIA H20", 95.0, 78, 700),
        ("NVIDIA GeForce RTX 4090", 23.6, 128, 700),
    ],
)
def test_gpus_are_known_by_what_torch_calls_them(
    name: str, memory_gib: float, units: int, peak: float
) -> None:
    device = {**H100, "name": name, "memory_bytes": memory_gib * 2**30, "compute_units": units}
    text = Preflight(preflight_result(device), "hal").file(WHEN)
    assert written(text).peak_bf16_tflops == peak
    assert ("state the data sheet's peak" in text) == (peak == 700)


def test_a_node_of_another_width_keeps_the_gpus_facts_but_not_its_links() -> None:
    inside = {"gpus": 4, "nodes": 1, "stride": 1, "operation": "all_reduce", "size_bytes": 2**28}
    changed = preflight_result(
        ranks_per_node=4, hosts=["n1"] * 4, adapters={},
        collectives=[{**inside, "seconds": 2 * 3 / 4 * 2**28 / 150e9}],
    )  # fmt: skip
    found = Preflight(changed, "hal")
    machine = written(found.file(WHEN))
    assert machine.peak_bf16_tflops == 989
    assert [link.gb_per_s for link in machine.links] == [200]  # of which 75 % were measured
    assert found.data_sheet().links == [] and machine.nic is None
