"""What a preflight of two nodes leaves, and the cluster files made of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import yaml

from search_spaces.cluster import Cluster

WHEN = datetime(2026, 1, 2, tzinfo=UTC)


H100 = {
    "type": "cuda", "name": "NVIDIA H100 80GB HBM3", "memory_bytes": int(79.11 * 2**30),
    "compute_units": 132, "library": "NCCL 2.27.3",
}  # fmt: skip


def preflight_result(device: dict[str, Any] = H100, **changes: Any) -> dict[str, Any]:
    """What ``trainer.preflight`` leaves of two nodes of eight GPUs."""
    rates = [700.0] * 15 + [690.0]
    inside = {"gpus": 8, "nodes": 1, "stride": 1}
    across = {"gpus": 16, "nodes": 2, "stride": 1}
    large = {"operation": "all_reduce", "size_bytes": 2**28}
    return {
        "status": "ok", "message": "", "device": device, "torch": "2.13.0",
        "ranks_per_node": 8, "hosts": ["n1"] * 8 + ["n2"] * 8, "cpus_per_node": 96,
        "host_memory_bytes": 2**41,
        "adapters": {f"mlx5_{i}:1": 50.0 for i in range(8)},
        "gemm": [
            {"of": "square", "dtype": "bfloat16", "rows": n, "columns": n, "inner": n,
             "tflops": [share * rate for rate in rates]}
            for n, share in ((4096, 0.9), (8192, 1.0))
        ],
        "copy": [{"bytes": 2**30, "gb_per_s": [2900.0] * 16}],
        "collectives": [
            {**large, **inside, "seconds": 2 * 7 / 8 * 2**28 / 360e9},
            {**large, **across, "seconds": 2 * 15 / 16 * 2**28 / 330e9},
        ],
        **changes,
    }  # fmt: skip


def written(text: str) -> Cluster:
    return Cluster.model_validate(yaml.safe_load(text))
