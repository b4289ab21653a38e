"""Results of the papers, and the ratio of their links to compute.

Scarcity r is the time in which a node's link carries the model's 2-byte weights once, divided by
the time in which a rank of ZeRO-topo does all its own work on one micro-batch, quantizing included.
A placement that moves v times those weights across nodes per micro-batch, and otherwise works as
much, takes 1 + v r such times if it overlaps nothing, and max(1, v r) if it overlaps all it can.
"""

from __future__ import annotations

from dataclasses import dataclass

ZERO_PP_OVER_ZERO3 = 1.405
ZERO_TOPO_OVER_ZERO_PP = 1.707
ZERO_TOPO_OVER_ZERO3 = 2.398
SCALING_EFFICIENCY = 0.94
"""TFLOPS of a 20B GPT on 384 GCDs of Frontier, and ZeRO-topo's weak scaling: Xu et al. 2025."""

DAI_HPZ_OVER_QGZ = {
    "Llama-2-7B": 5013 / 2880,
    "Llama-2-13B": 2521.4 / 2101,
    "Llama-2-70B": 456.9 / 358,
    "Falcon-40B": 881.9 / 444.5,
}
"""Throughput with (fenced) hpZ over without, qgZ in both: Dai et al. 2024, table 2."""

ZERO3_VOLUME = 3.0
ZERO_PP_VOLUME = 0.75
"""Times the 2-byte weights, across nodes, per micro-batch: Xu et al. 2025, section III-C."""

_PARAMETERS = 20e9
_LINK_BYTES_PER_S = 100e9  # of a Frontier node: section IV
_SEQUENCE = 2048
# 38.38 % of 191.5 TFLOPS, the best of Dash et al. 2023 for 22B parameters on Frontier.
_FLOPS_PER_S = 73.5e12


@dataclass(frozen=True)
class Scarcity:
    """One way to learn r on Frontier, and what it gives."""

    value: float
    assumption: str


def scarcities() -> dict[str, Scarcity]:
    """r of the paper's 20B run on 384 GCDs, learnt in ways that do not agree; see each assumption.

    Volumes alone explain no two of the ratios: what ZeRO++ lost to its links is half of what ZeRO-3
    lost, at a quarter of the bytes. So the paper gives a range.
    """
    # In units of ZeRO-topo's own work per micro-batch; what does not scale is its communication.
    topo = 1 / SCALING_EFFICIENCY
    zero3, zero_pp = ZERO_TOPO_OVER_ZERO3 * topo, ZERO_TOPO_OVER_ZERO_PP * topo
    micro_batch_s = 6 * _PARAMETERS * _SEQUENCE / _FLOPS_PER_S
    return {
        "ZeRO-3, no overlap": Scarcity(
            (zero3 - 1) / ZERO3_VOLUME, "1 + 3 r is what ZeRO-3 takes longer than ZeRO-topo"
        ),
        "ZeRO-3, full overlap": Scarcity(zero3 / ZERO3_VOLUME, "3 r is"),
        "ZeRO++, no overlap": Scarcity(
            (zero_pp - 1) / ZERO_PP_VOLUME, "1 + 0.75 r is what ZeRO++ takes longer"
        ),
        "ZeRO++, full overlap": Scarcity(zero_pp / ZERO_PP_VOLUME, "0.75 r is"),
        "nominal": Scarcity(
            2 * _PARAMETERS / _LINK_BYTES_PER_S / micro_batch_s,
            "100 GB/s a node, fully used; micro-batches of one sequence of 2048 at 73.5 TFLOPS",
        ),
    }
