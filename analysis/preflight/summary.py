"""A preflight's measurements in lines of text, and what is suspicious about them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from analysis.preflight.facts import best_ring, link_warnings, points, slow_gpu_warnings
from foundation.quantities import counted
from search_spaces import Cluster

_HANG = (
    "collectives of three communicators, started together in one order on every rank, did not end "
    "({library}): training with tensor and data parallelism may hang. A later library helps, or "
    "NCCL_LAUNCH_ORDER_IMPLICIT: 1 in the site profile's env, which keeps their order"
)


def summary(result: Mapping[str, Any]) -> list[str]:
    """One line for each product, copy and group in ``trainer.preflight``'s result."""
    lines = []
    for gemm in result.get("gemm", []):
        label = f"{gemm['dtype']} {gemm['rows']} x {gemm['columns']} x {gemm['inner']}"
        lines.append(f"{label:44s}{median(gemm['tflops']):10.4g} TFLOP/s")
    for key, label in (("copy", "memory copy"), ("host_copy", "host to device")):
        for copy in result.get(key, []):
            lines.append(f"{label:44s}{median(copy['gb_per_s']):10.4g} GB/s")
    measurements = points(result.get("collectives", []))
    for gpus, nodes, stride in dict.fromkeys((p.gpus, p.nodes, p.stride) for p in measurements):
        label = f"{gpus} ranks on {counted(nodes, 'node')}, stride {stride}"
        ring = best_ring(measurements, gpus, nodes, stride)
        if ring:
            lines.append(
                f"{label:44s}{ring.bus_gb_per_s:10.4g} GB/s bus bandwidth, {ring.operation} of "
                f"{ring.size_bytes / 2**20:.4g} MiB"
            )
    return lines


def warnings(result: Mapping[str, Any], data_sheet: Cluster) -> list[str]:
    """Warnings about slow links, slow GPUs and communicators that hang."""
    found = link_warnings(points(result.get("collectives", [])), data_sheet)
    if result["device"]["type"] != "cpu":
        gemm = result["gemm"][-1]
        found += slow_gpu_warnings(gemm["tflops"], result["hosts"], result["ranks_per_node"])
    if result.get("side_by_side") is False:
        found.append(_HANG.format(library=result["device"]["library"]))
    return found
