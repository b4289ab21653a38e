"""A GPU's published name stands for a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.sweeps.gpus import UnknownGpuError, cluster_of


def test_a_gpu_may_be_a_clusters_file(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("{name: own, gpus_per_node: 4, memory_gib: 192, peak_bf16_tflops: 1307}\n")
    assert cluster_of(str(own), 4).memory_gib == 192
    assert cluster_of("NVIDIA A100-SXM4-80GB").name == "dgx_a100"


@pytest.mark.parametrize(
    ("gpu", "gpus_per_node", "cluster", "memory_gib"),
    [
        ("A100-80GB-SXM4", None, "dgx_a100", 80),
        ("A100-40GB", 4, "perlmutter", 40),
        ("a100_40gb", 8, "dgx_a100/40GiB", 40),
        ("GH200-H100-96GB", 4, "alps", 96),
        ("MI250X-GCD-64GB", None, "frontier", 64),
        ("V100-16GB (4/node, OPA)", None, "jean_zay_v100/16GiB", 16),
        ("H200", 8, "dgx_h200", 140),
    ],
)
def test_a_gpu_stands_for_a_cluster(
    gpu: str, gpus_per_node: int | None, cluster: str, memory_gib: float
) -> None:
    found = cluster_of(gpu, gpus_per_node)
    assert (found.name, found.memory_gib) == (cluster, memory_gib)


def test_a_node_of_another_size_keeps_its_share_of_the_network() -> None:
    small, large = cluster_of("H100", 4), cluster_of("MI250X", 2)
    assert small.gpus_per_node == 4 and [link.gpus for link in small.links] == [4]
    assert small.nic is not None and small.nic.count * small.nic.gb_per_s == 200
    assert [(link.gpus, link.gb_per_s) for link in large.links] == [(2, 200)]
    with pytest.raises(UnknownGpuError, match="accepted"):
        cluster_of("GTX 1080")


def test_a_gpu_of_less_power_multiplies_by_its_cube_root() -> None:
    full, less = cluster_of("H100"), cluster_of("H100-96GB-HBM2e-500W")
    assert (full.power_watts, less.power_watts) == (700, 500)
    assert less.gemm_bf16_tflops == pytest.approx((5 / 7) ** (1 / 3) * full.gemm_bf16_tflops, 1e-3)
    assert less.gemm_fp8_tflops == pytest.approx((5 / 7) ** (1 / 3) * 0.8 * 1979, 1e-3)
