"""The order of torch's ZBVZeroBubble, whose stages go there and back, two on each rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import ScheduleZBVZeroBubble
from torch.distributed.pipelining.schedules import BACKWARD_WEIGHT, FORWARD, FULL_BACKWARD


def order(ranks: int, micro_batches: int, rank: int) -> list[Any]:
    """What a rank does, one after another."""
    asked: Any = SimpleNamespace(
        pp_group_size=ranks,
        num_stages=2 * ranks,
        _num_stages=2 * ranks,
        _n_microbatches=micro_batches,
    )
    actions = ScheduleZBVZeroBubble._calculate_single_rank_operations(asked, rank)
    return [action for action in actions if action is not None]


def most_in_flight(ranks: int, micro_batches: int, rank: int) -> tuple[int, int]:
    """Chunks whose activations a rank holds at once, and those of the last stage among them."""
    held: set[tuple[int, int]] = set()
    most = of_last = 0
    for action in order(ranks, micro_batches, rank):
        key = (action.stage_index, action.microbatch_index)
        if action.computation_type == FORWARD:
            held.add(key)
        elif action.computation_type in (FULL_BACKWARD, BACKWARD_WEIGHT):
            held.discard(key)
        most = max(most, len(held))
        of_last = max(of_last, sum(stage == 2 * ranks - 1 for stage, _ in held))
    return most, of_last


def turns(ranks: int, micro_batches: int, inputs: int) -> float:
    """Length of a step in which a chunk's forward pass and its products for weights take 1 each.

    Args:
        inputs: turns of the pass for gradients of inputs.
    """
    orders = [order(ranks, micro_batches, rank) for rank in range(ranks)]
    clocks, ended, last = [0] * ranks, dict[tuple[str, int, int], int](), 2 * ranks - 1
    stuck = False
    while not stuck:
        stuck = True
        for rank, mine in enumerate(orders):
            while mine:
                stage, kind, batch = mine[0][:3]
                key, cost, before = ("weights", stage, batch), 1, None
                if kind == FORWARD:
                    key = ("forward", stage, batch)
                    before = ("forward", stage - 1, batch) if stage else None
                elif kind != BACKWARD_WEIGHT:
                    key, cost = ("back", stage, batch), inputs + (kind == FULL_BACKWARD)
                    ends = stage == last
                    before = ("forward", last, batch) if ends else ("back", stage + 1, batch)
                if before is not None and before not in ended:
                    break
                clocks[rank] = max(clocks[rank], ended.get(before, 0) if before else 0) + cost
                ended[key] = clocks[rank]
                mine.pop(0)
                stuck = False
    assert not any(orders)
    return max(clocks)
