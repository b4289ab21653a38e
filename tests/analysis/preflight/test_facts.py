"""Measured links become facts that the cost model prices alike, and slow ones are named."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.cost.collectives import bus_bytes_per_s
from analysis.cost.groups import LinkConstants, group_of
from analysis.preflight.facts import (
    Point,
    collectives,
    derived_links,
    derived_nic,
    hop_us,
    inter_node_hop_us,
    link_warnings,
    slow_gpu_warnings,
)
from analysis.preflight.file import Preflight
from search_spaces.cluster import Cluster
from support.preflight_results import preflight_result

MIB = 2**20


def point(
    gpus: int, gb_per_s: float, nodes: int = 1, stride: int = 1, operation: str = "all_reduce",
    size_mib: float = 256,
) -> Point:  # fmt: skip
    """A measurement with this bus bandwidth."""
    unit = Point(operation, gpus, nodes, stride, round(size_mib * MIB), 1.0)
    seconds = unit.bus_gb_per_s / gb_per_s
    return Point(operation, gpus, nodes, stride, unit.size_bytes, seconds)


def cluster(**facts: object) -> Cluster:
    base = {"name": "m", "gpus_per_node": 8, "memory_gib": 80, "peak_bf16_tflops": 989}
    return Cluster.model_validate({**base, **facts})


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """nccl-tests, doc/PERFORMANCE.md: 2 (n - 1) / n for all-reduce, else (n - 1) / n."""
    assert Point("all_reduce", 4, 1, 1, 10**9, 0.5).bus_gb_per_s == pytest.approx(3.0)
    assert Point("all_gather", 4, 1, 1, 10**9, 0.5).bus_gb_per_s == pytest.approx(1.5)
    assert Point("send", 2, 1, 1, 10**9, 0.5).bus_gb_per_s == pytest.approx(2.0)


def test_a_missing_plug_in_is_noticed_by_the_published_figures_of_alps() -> None:
    alps = Cluster.shipped()["alps"]
    assert link_warnings([point(8, 122.6, nodes=2)], alps) == []
    [warning] = link_warnings([point(8, 5.4, nodes=2)], alps)
    assert "5.4 GB/s" in warning and "on 2 nodes" in warning and "aws-ofi-nccl" in warning


def test_what_shipped_clusters_were_measured_at_is_not_suspicious() -> None:
    judged = 0
    for cluster in Cluster.shipped().values():
        measured = [
            point(c.gpus, c.bus_gb_per_s, c.nodes, c.stride, size_mib=c.size_mib)
            for c in cluster.measured
        ]
        judged += len(measured)
        assert link_warnings(measured, cluster) == [], cluster.name
    assert judged > 10


def test_the_worst_group_of_either_kind_is_named() -> None:
    nominal = cluster(
        links=[{"level": "node", "gpus": 8, "gb_per_s": 450}], nic={"count": 8, "gb_per_s": 50}
    )
    measured = [
        point(2, 100), point(8, 21), point(4, 30), point(16, 80, nodes=2),
        point(2, 9, nodes=2, stride=8),
    ]  # fmt: skip
    inside, between = link_warnings(measured, nominal)
    assert "8 GPUs inside a node" in inside and "5 % of the 450 GB/s" in inside
    assert "PCIe" in inside
    # Each of 8 groups has an eighth of the adapters: 50 GB/s.
    assert "2 GPUs on 2 nodes (stride 8)" in between and "18 % of the 50 GB/s" in between


def test_small_messages_and_unknown_links_are_not_judged() -> None:
    nominal = cluster(links=[{"level": "node", "gpus": 8, "gb_per_s": 450}])
    assert link_warnings([point(8, 1, size_mib=1), point(16, 1, nodes=2)], nominal) == []
    assert link_warnings([point(16, 0.1, nodes=2)], cluster(nic={"count": 1, "gb_per_s": 9})) == []


def bandwidth(cluster: Cluster, gpus: int, stride: int = 1) -> float:
    return float(bus_bytes_per_s(cluster, LinkConstants(), group_of(gpus, stride))[0]) / 1e9


def test_derived_links_reproduce_what_was_measured() -> None:
    measured = [point(2, 150), point(4, 145), point(8, 40), point(16, 22, nodes=2),
                point(2, 2.5, nodes=2, stride=8)]  # fmt: skip
    links, nic = derived_links(measured, 8), derived_nic(measured, 8)
    assert [(link.level, link.gpus) for link in links] == [("group of 4", 4), ("node", 8)]
    found = cluster(links=links, nic=nic)
    assert bandwidth(found, 4) == pytest.approx(150, rel=0.01)
    assert bandwidth(found, 8) == pytest.approx(40, rel=0.01)
    assert bandwidth(found, 16) == pytest.approx(22, rel=0.01)
    # What pairs across nodes did not reach, the ring of all showed to be there.
    assert bandwidth(found, 2, stride=8) == pytest.approx(22 / 8, rel=0.01)


def test_gpus_with_a_link_to_each_other_one_are_recognised() -> None:
    [link] = derived_links([point(2, 76), point(4, 225)], 4)
    assert link.fully_connected
    found = cluster(gpus_per_node=4, links=[link])
    assert [bandwidth(found, n) for n in (2, 4)] == pytest.approx([76, 228], rel=0.01)


def test_hops_are_what_one_more_rank_costs() -> None:
    def gather(seconds: float, gpus: int, nodes: int = 1, stride: int = 1) -> Point:
        return Point("all_gather", gpus, nodes, stride, 4096, seconds)

    measured = [gather(30e-6, 2), gather(54e-6, 8), gather(50e-6, 2, 2, 8)]
    assert hop_us(measured, 8) == pytest.approx(4)
    assert inter_node_hop_us(measured, 8) == pytest.approx(24)
    assert hop_us([gather(30e-6, 2), gather(29e-6, 8)], 8) is None


def test_a_cluster_file_states_measured_sends_too() -> None:
    entries = collectives([point(2, 5, operation="send"), point(2, 5, operation="all_gather")])
    assert [entry.operation for entry in entries] == ["send", "all_gather"]


def test_a_slow_gpu_is_named_by_its_host() -> None:
    rates = [700.0] * 16
    rates[11] = 500.0
    [warning] = slow_gpu_warnings(rates, ["a"] * 8 + ["b"] * 8, 8)
    assert warning.startswith("local rank 3 on b computes at 500")
    assert slow_gpu_warnings(list(np.linspace(650, 700, 8)), ["a"] * 8, 8) == []


@pytest.mark.parametrize(("ended", "warnings"), [(True, 0), (False, 1), (None, 0)])
def test_communicators_that_hang_side_by_side_are_warned_of_with_the_library(
    ended: bool | None, warnings: int
) -> None:
    result = preflight_result() if ended is None else preflight_result(side_by_side=ended)
    found = [w for w in Preflight(result, "hal").warnings() if "communicators" in w]
    assert len(found) == warnings
    assert all("NCCL 2.27.3" in warning for warning in found)
