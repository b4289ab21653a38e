"""Where the states of data-parallel training live: one record for every kind of ZeRO.

Weights, a secondary copy of them, gradients and optimizer states are each split over a number of
consecutive data-parallel ranks, and repeated beyond. ZeRO's stages (Rajbhandari et al. 2020), MiCS
and hybrid sharding (Zhang et al. 2022), ZeRO++ (Wang et al. 2023) and ZeRO-topo (Xu et al. 2025)
are points of this space. The trainer executes the record, the cost model prices it. Torch-free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, get_args

from trainer.formats import Format
from trainer.states import state_bytes

Preset = Literal["zero0", "zero1", "zero2", "zero3", "hpz", "mics", "zero++", "zero_topo"]
PRESETS: tuple[Preset, ...] = get_args(Preset)


class PlacementError(ValueError):
    """A placement that contradicts itself or the ranks; the message names rule and values."""


class Level(StrEnum):
    """The widest link that a group of ranks talks over."""

    PAIR = "pair"
    NODE = "node"
    INTER_NODE = "inter_node"


@dataclass(frozen=True)
class Topology:
    """How ranks are laid over the machine, in the order of their numbers.

    Attributes:
        ranks_per_node: ranks that share a node.
        ranks_per_pair: ranks that share a card, 2 on MI250X; 1 where a card is one device.
    """

    ranks_per_node: int
    ranks_per_pair: int = 1

    def __post_init__(self) -> None:
        if self.ranks_per_node < 1 or self.ranks_per_pair < 1:
            raise PlacementError(f"a node and a pair have at least one rank: {self}")
        if self.ranks_per_node % self.ranks_per_pair:
            raise PlacementError(
                f"ranks_per_pair {self.ranks_per_pair} does not divide "
                f"ranks_per_node {self.ranks_per_node}; set it to the ranks of one card, or 1"
            )

    def level(self, ranks: Sequence[int]) -> Level:
        """The widest link inside a group, given its global ranks."""
        if len({rank // self.ranks_per_pair for rank in ranks}) == 1:
            return Level.PAIR
        if len({rank // self.ranks_per_node for rank in ranks}) == 1:
            return Level.NODE
        return Level.INTER_NODE

    def replicas_per_node(self, dp: int, tp: int) -> int:
        """Consecutive data-parallel ranks that share a node and divide ``dp``."""
        return self._within(self.ranks_per_node, dp, tp)

    def replicas_per_pair(self, dp: int, tp: int) -> int:
        """Consecutive data-parallel ranks that share a pair and divide ``dp``."""
        return self._within(self.ranks_per_pair, dp, tp)

    @staticmethod
    def _within(ranks: int, dp: int, tp: int) -> int:
        return math.gcd(dp, ranks // tp) if ranks % tp == 0 else 1


@dataclass(frozen=True)
class Grid:
    """All ranks as a grid; the number of a rank is ((pp) * dp + dp) * tp + tp."""

    pp: int
    dp: int
    tp: int

    def replica_groups(self, size: int, stride: int) -> list[list[int]]:
        """Global ranks of all groups of ``size`` data-parallel ranks, ``stride`` apart.

        They tile the data-parallel axis: blocks of ``size * stride`` ranks, each cut into
        ``stride`` groups.
        """
        span = size * stride
        firsts = [block + i for block in range(0, self.dp, span) for i in range(stride)]
        return [
            [
                (pp * self.dp + replica) * self.tp + tp
                for replica in range(first, first + span, stride)
            ]
            for pp in range(self.pp)
            for tp in range(self.tp)
            for first in firsts
        ]


@dataclass(frozen=True)
class Share:
    """One state: the ranks it is split over, and its number format.

    Attributes:
        degree: consecutive data-parallel ranks that hold the whole between them.
        format: in memory.
    """

    degree: int
    format: Format


@dataclass(frozen=True)
class Placement:
    """Degrees and formats of all states, over ``dp`` data-parallel ranks.

    Attributes:
        dp: data-parallel ranks.
        weights: what forward and backward passes are computed with.
        secondary: a copy of the weights on nearer ranks, gathered in place of ``weights`` (hpZ).
        gradients: as they are accumulated over micro-batches.
        optimizer: float32 master weights and AdamW's two moments.
        gather_format: of weights on their way.
        reduce_format: of gradients on their way.
        weights_are_master: weights and master weights are one copy in float32, split as the
            weights are and counted as the optimizer's.
    """

    dp: int
    weights: Share
    gradients: Share
    optimizer: Share
    gather_format: Format
    reduce_format: Format
    secondary: Share | None = None
    weights_are_master: bool = False

    def __post_init__(self) -> None:
        chain = (
            ("weight_shard", self.weights.degree),
            ("gradient_shard", self.gradients.degree),
            ("optimizer_shard", self.optimizer.degree),
            ("dp", self.dp),
        )
        for (inner, low), (outer, high) in itertools.pairwise(chain):
            if low < 1:
                raise PlacementError(f"{inner} {low} is below 1; 1 means: not split")
            # Xu et al. 2025, section V: N >= N_os >= N_g >= N_w, else a rank would hold states
            # of parameters that it has no part in.
            if low > high:
                raise PlacementError(
                    f"{inner} {low} is above {outer} {high}; lower {inner}{_or_raise(outer)}"
                )
            if high % low:
                raise PlacementError(
                    f"{inner} {low} does not divide {outer} {high}; make {inner} a divisor of it"
                )
        if self.secondary is not None:
            degree = self.secondary.degree
            if self.weights.degree == 1:
                raise PlacementError(
                    f"secondary_shard {degree}: a secondary copy needs split weights, "
                    "but weight_shard is 1; raise weight_shard, or set secondary_shard: 0"
                )
            if degree < 1 or self.dp % degree:
                raise PlacementError(
                    f"secondary_shard {degree} does not divide dp {self.dp}; "
                    "make secondary_shard a divisor of it"
                )

    @property
    def weight_shard(self) -> int:
        return self.weights.degree

    @property
    def secondary_shard(self) -> int:
        """0: no secondary copy."""
        return self.secondary.degree if self.secondary else 0

    @property
    def gradient_shard(self) -> int:
        return self.gradients.degree

    @property
    def optimizer_shard(self) -> int:
        return self.optimizer.degree

    @property
    def fully_sharded(self) -> bool:
        """Whether any state but the optimizer's is split: then FSDP2 holds the weights."""
        return self.gradients.degree > 1

    @property
    def storage_degree(self) -> int:
        """Ranks over which the weights that gathers start from are split.

        Whole weights with split gradients (ZeRO-2) are gathered from the gradients' split once
        a step, and kept.
        """
        return self.weights.degree if self.weights.degree > 1 else self.gradients.degree

    @property
    def keeps_whole(self) -> bool:
        """Whether whole weights stay in memory from one step to the next."""
        return self.weights.degree == 1

    def bytes_per_rank(self, parameters: int) -> dict[str, float]:
        """Bytes of each state on one rank in steady state; see ``trainer.states.state_bytes``.

        Args:
            parameters: of the model, or of the part that a rank's tp and pp leave it.
        """
        found = state_bytes(
            parameters,
            self,
            weight_bytes=self.weights.format.bits / 8,
            secondary_bytes=self.secondary.format.bits / 8 if self.secondary else 0.0,
            gradient_bytes=self.gradients.format.bits / 8,
            one_copy=self.weights_are_master,
        )
        return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True)
class Wishes:
    """What a configuration says of its placement; None where it leaves the preset's value."""

    weight_shard: int | None = None
    secondary_shard: int | None = None
    gradient_shard: int | None = None
    optimizer_shard: int | None = None
    quantize_weights: bool | None = None
    quantize_gradients: bool | None = None
    quantize_secondary: bool | None = None


def preset_wishes(preset: Preset, dp: int, tp: int, topology: Topology) -> Wishes:
    """The degrees and formats that a preset stands for on a machine.

    ``hpz`` keeps a secondary copy in the node; ``mics`` (hybrid sharding) splits all states in
    the node and repeats them; ``zero++`` is hpz with both quantizations; ``zero_topo`` splits
    weights over a pair (over the node where a card is one device), gradients over the node and
    optimizer states over all, everything quantized on its way (Xu et al. 2025, table IV).
    """
    node = topology.replicas_per_node(dp, tp)
    pair = topology.replicas_per_pair(dp, tp)
    degrees: dict[Preset, tuple[int, int, int]] = {
        "zero0": (1, 1, 1),
        "zero1": (1, 1, dp),
        "zero2": (1, dp, dp),
        "zero3": (dp, dp, dp),
        "hpz": (dp, dp, dp),
        "mics": (node, node, node),
        "zero++": (dp, dp, dp),
        "zero_topo": (pair if pair > 1 else node, node, dp),
    }
    weights, gradients, optimizer = degrees[preset]
    wishes = Wishes(weights, None, gradients, optimizer, False, False, False)
    if preset in ("hpz", "zero++") and weights > 1:
        wishes = replace(wishes, secondary_shard=node)
    if preset == "zero_topo" and weights > 1:
        wishes = replace(wishes, secondary_shard=weights, quantize_secondary=True)
    if preset in ("zero++", "zero_topo"):
        wishes = replace(wishes, quantize_weights=True, quantize_gradients=True)
    return wishes


def place(
    preset: Preset,
    wishes: Wishes,
    dp: int,
    tp: int,
    topology: Topology,
    precision: Format,
    reduce_precision: Format = Format.FP32,
) -> Placement:
    """The trainer's placement: a preset, changed by what the configuration says.

    Gradients are accumulated in float32. Where master weights are split as the weights are, the
    weights are the master weights, cast as they are gathered.

    Args:
        preset: what the wishes leave open.
        wishes: of the configuration; ``secondary_shard`` 0 asks for none.
        dp: data-parallel ranks.
        tp: tensor-parallel ranks, which lie between two data-parallel ones.
        topology: of the machine.
        precision: of the computation.
        reduce_precision: of gradients on their way, where they are not quantized.

    Raises:
        PlacementError: where the degrees break a rule, with its values.
    """
    for name in ("weight_shard", "gradient_shard", "optimizer_shard"):
        degree = getattr(wishes, name)
        if degree is not None and not 1 <= degree <= dp:
            raise PlacementError(
                f"{name} {degree} is not from 1 (not split) to dp {dp}; change {name}"
            )
    base = preset_wishes(preset, dp, tp, topology)
    weights = _either(wishes.weight_shard, base.weight_shard)
    gradients = _either(wishes.gradient_shard, base.gradient_shard)
    if wishes.gradient_shard is None:
        gradients = max(gradients, weights)
    optimizer = _either(wishes.optimizer_shard, base.optimizer_shard)
    if wishes.optimizer_shard is None:
        optimizer = max(optimizer, gradients)
    secondary = _either(wishes.secondary_shard, base.secondary_shard)
    if wishes.secondary_shard is None and weights == 1:
        secondary = 0
    if gradients == 1:
        for name in ("quantize_weights", "quantize_gradients"):
            if getattr(wishes, name) and dp > 1:
                raise PlacementError(
                    f"{name} needs split gradients, but gradient_shard is 1; "
                    f"raise gradient_shard, or set {name}: false"
                )
        base = replace(base, quantize_weights=False, quantize_gradients=False)
    int8_weights = _either(wishes.quantize_weights, base.quantize_weights)
    int4_gradients = _either(wishes.quantize_gradients, base.quantize_gradients)
    int8_secondary = _either(wishes.quantize_secondary, base.quantize_secondary)
    if wishes.quantize_secondary and not secondary:
        raise PlacementError(
            "quantize_secondary is set, but there is no secondary copy: set secondary_shard"
        )
    storage = weights if weights > 1 else gradients
    one_copy = precision == Format.FP32 if gradients == 1 else weights > 1 and storage == optimizer
    return Placement(
        dp=dp,
        weights=Share(weights, precision),
        secondary=Share(secondary, Format.INT8 if int8_secondary else precision)
        if secondary
        else None,
        gradients=Share(gradients, Format.FP32),
        optimizer=Share(optimizer, Format.FP32),
        gather_format=Format.INT8 if int8_weights else precision,
        reduce_format=Format.INT4 if int4_gradients else reduce_precision,
        weights_are_master=one_copy,
    )


def _or_raise(outer: str) -> str:
    """dp follows from the ranks; all other degrees can be set."""
    return "" if outer == "dp" else f", or raise {outer}"


def _either(wish: int | None, base: int | None) -> int:
    chosen = base if wish is None else wish
    return chosen or 0
