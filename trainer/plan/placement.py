"""Placement of data-parallel training states: one record for every kind of ZeRO. Torch-free.

Weights, a secondary copy of them, gradients and optimizer states are each sharded over a number of
consecutive data-parallel ranks and replicated beyond. ZeRO stages (Rajbhandari et al. 2020), MiCS
and hybrid sharding (Zhang et al. 2022), ZeRO++ (Wang et al. 2023) and ZeRO-topo (Xu et al. 2025)
are points of this space. The trainer executes the record, the cost model prices it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from trainer.plan.formats import Format
from trainer.plan.limits import ConfigError
from trainer.plan.rules.catalog import REQUIREMENTS
from trainer.plan.rules.requirement import refusal
from trainer.plan.states import DEGREES, degree_among, in_flat_buckets


class Level(StrEnum):
    """Widest link inside a group of ranks."""

    PAIR = "pair"
    NODE = "node"
    INTER_NODE = "inter_node"


@dataclass(frozen=True)
class Topology:
    """Consecutive ranks on the machine; raises ConfigError unless cards divide the node."""

    ranks_per_node: int
    ranks_per_pair: int = 1  # of one card: 2 on MI250X, else 1

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1 or self.ranks_per_pair < 1:
            raise ConfigError(f"a node and a pair have at least one rank: {self}")
        if self.ranks_per_node % self.ranks_per_pair:
            raise ConfigError(
                f"ranks_per_pair {self.ranks_per_pair} does not divide "
                f"ranks_per_node {self.ranks_per_node}; set it to the ranks of one card, or 1"
            )

    def level(self, ranks: Sequence[int]) -> Level:
        """Widest link inside a group of global ranks."""
        if len({rank // self.ranks_per_pair for rank in ranks}) == 1:
            return Level.PAIR
        if len({rank // self.ranks_per_node for rank in ranks}) == 1:
            return Level.NODE
        return Level.INTER_NODE

    def replicas_per_node(self, dp: int, apart: int) -> int:
        """Consecutive data-parallel ranks on one node, dividing ``dp``."""
        return int(shared_within(self.ranks_per_node, dp, apart))


def shared_within(ranks: int, dp: Any, apart: Any) -> Any:
    """Consecutive data-parallel ranks on a node or card of ``ranks`` ranks, dividing ``dp``.

    1 unless ``apart``, the distance between two of them, divides ``ranks``. Numbers or columns.
    """
    return np.where(ranks % apart == 0, np.gcd(dp, np.maximum(ranks // apart, 1)), 1)


@dataclass(frozen=True)
class Placement:
    """Shard degrees and formats of all states over ``dp`` ranks.

    Raises ConfigError if they contradict each other or the ranks; it names the rule and the values.
    """

    dp: int  # ranks with the same weights: data parallel times context parallel
    # consecutive data-parallel ranks that each state is sharded over
    weight_shard: int  # of the forward and backward passes
    gradient_shard: int  # as accumulated over micro-batches, in float32
    optimizer_shard: int  # float32 master weights and AdamW's moments
    gather_format: Format  # of weights in collectives
    reduce_format: Format  # of gradients in collectives
    secondary_shard: int = 0  # copy of weights on nearer ranks, gathered instead (hpZ); 0: none
    secondary_format: Format = Format.FP32  # of that copy in memory

    def __post_init__(self) -> None:
        degrees = {name: getattr(self, name) for name in ("dp", *DEGREES)}
        for name, degree in degrees.items():
            least = 0 if name == "secondary_shard" else 1
            if degree < least:
                raise ConfigError(f"{name} {degree} is below {least}, which means: not split")
        if broken := refusal(REQUIREMENTS, degrees):
            raise ConfigError(broken)

    @property
    def fully_sharded(self) -> bool:
        """Whether FSDP2 holds the weights; else they lie whole in flat buckets."""
        quantized = self.gather_format.quantized or self.reduce_format.quantized
        return not in_flat_buckets(self, quantized)

    @property
    def storage_degree(self) -> int:
        """Shard degree of the weights that gathers read.

        FSDP2 gathers whole weights once a step from the gradients' sharding, and keeps them.
        """
        return self.weight_shard if self.weight_shard > 1 else self.gradient_shard

    @property
    def keeps_whole(self) -> bool:
        """Whether whole weights stay in memory between steps."""
        return self.weight_shard == 1

    def among(self, fewer: int) -> Placement:
        """The placement of parameters, such as experts, that one in ``fewer`` ranks holds."""
        if fewer == 1:
            return self
        holders = self.dp // fewer
        degrees: dict[str, Any] = {
            n: int(degree_among(getattr(self, n), fewer, holders)) for n in DEGREES
        }
        if degrees["weight_shard"] == 1:
            degrees["secondary_shard"] = 0
        return replace(self, dp=holders, **degrees)
