"""What one rank keeps and sends of a unit or a whole placement, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trainer.plan.axes.dp import Cuts, Holders, Wires, state_exchanges
from trainer.plan.exchange import Exchange
from trainer.plan.formats import Format
from trainer.plan.placement import Placement
from trainer.plan.shards import UnitLayout, secondary_wire, sum_format
from trainer.plan.states import Degrees, masters_are_weights, state_bytes


def bytes_per_rank(
    placement: Placement,
    parameters: int,
    own_masters: bool = False,
    precision: Format = Format.BF16,
    gradients: Format = Format.FP32,
) -> dict[str, float]:
    """Bytes of each state on one rank, with ``parameters`` left to it by tp and pp; see
    ``state_bytes``. ``own_masters``: weights are never the master weights."""
    in_float32 = precision == Format.FP32
    alike = masters_are_weights(placement, in_float32, not placement.fully_sharded)
    found = state_bytes(
        parameters,
        placement,
        weight_bytes=precision.bits / 8,
        secondary_bytes=placement.secondary_format.bits / 8,
        gradient_bytes=gradients.bits / 8,
        one_copy=alike and not own_masters,
    )
    return {name: float(value) for name, value in found.items()}


def unit_exchanges(
    unit: UnitLayout, holders: Holders, gathers: tuple[int, int], reductions: int
) -> Iterator[Exchange]:
    """Exact collectives of one rank per step for one unit.

    Quantized gradients take an all-to-all within the node, then one across nodes (Wang et al. 2023,
    section 4.3). Updated weights are gathered between slices of a piece, then between pieces.

    Args:
        unit: memory layout.
        holders: ranks with the same parameters.
        gathers: per step, from the primary shards and from the secondary copy.
        reductions: gradient reductions per step.
    """
    placement = unit.placement
    rows, copied = unit.secondary if placement.secondary_shard else (0, 0)
    copy = secondary_wire(placement)
    gather, reduce = placement.gather_format.num_bytes, placement.reduce_format.num_bytes
    degree = placement.gradient_shard
    whole = state_exchanges(
        holders,
        # Gathers read the stored weights, which may be sharded where those in use are not.
        Degrees(unit.ranks, placement.secondary_shard, degree, placement.optimizer_shard),
        Cuts(unit.used, copied, unit.piece, unit.slice),
        Wires(gather, lambda n: rows * copy.num_bytes(n), reduce, sum_format(placement).num_bytes),
        gathers,
        reductions,
    )
    yield whole.weights
    yield whole.secondary
    stride, rest = 1, degree
    for hop in unit.hops if placement.reduce_format.quantized else (degree,):
        rest //= hop
        num_bytes = hop * reduce(rest * unit.piece)
        yield replace(whole.gradients, group=holders.group(hop, stride), num_bytes=num_bytes)
        stride *= hop
    yield whole.gradient_scatter
    yield whole.gradient_sum
    one = gather(unit.slice)
    across, within = holders.group(unit.slices, degree), holders.group(unit.pieces, unit.ranks)
    yield replace(whole.publish, group=across, num_bytes=unit.slices * one)
    yield replace(whole.publish, group=within, num_bytes=unit.pieces * unit.slices * one)
