"""What one rank will send in a training step, collective by collective, before anything runs.

The counterpart of the counters in ``collectives``: the same purposes, links and bytes, from the
configuration alone. Torch-free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.plan import ring
from trainer.plan.axes import Axes
from trainer.plan.config import TrainConfig
from trainer.plan.grid_traffic import grid_calls
from trainer.plan.placement import Level, Placement, Topology
from trainer.plan.shapes import Parameter, Ranks, in_order, stage_parameters
from trainer.plan.shards import UnitLayout, fill, gathers_per_step, padded, unit_traffic
from trainer.plan.sizes import LAYER_GATHERS, LAYER_SUMS

Report = dict[str, dict[str, dict[str, int]]]
_FLOAT32_BYTES = 4


def expected_traffic(
    config: TrainConfig, world_size: int, rank: int = 0, local_world_size: int | None = None
) -> Report:
    """All that a rank sends in one step, as ``result.json`` reports it under ``communication``.

    Args:
        config: what is trained, by this project's own engine.
        world_size: ranks of the job.
        rank: of which one; first and last pipeline stages send more, and levels may differ.
        local_world_size: ranks on a node, where the configuration does not say.

    Returns:
        ``{"bytes": {purpose: {level: n}}, "calls": {purpose: {level: n}}}``.

    Raises:
        ConfigError: if the configuration cannot run on so many ranks.
    """
    config.check(world_size, local_world_size)
    num_bytes: Counter[tuple[str, Level]] = Counter()
    calls: Counter[tuple[str, Level]] = Counter()
    topology = config.topology(world_size, local_world_size)
    seat = _Seat(config.axes(world_size), rank, topology)
    placement = config.place(world_size, local_world_size)
    for one in _all_sent(config, seat, placement):
        num_bytes[one.purpose, one.level] += one.num_bytes * one.times
        calls[one.purpose, one.level] += one.times
    report: Report = {"bytes": {}, "calls": {}}
    for name, counter in (("bytes", num_bytes), ("calls", calls)):
        for (purpose, level), total in sorted(counter.items()):
            report[name].setdefault(purpose, {})[level.value] = total
    return report


@dataclass(frozen=True)
class _Calls:
    """Collectives of one size."""

    purpose: str
    level: Level
    num_bytes: int
    """Sent by this rank in each."""
    times: int = 1


class _Seat:
    """Where a rank stands, and how far its groups reach."""

    def __init__(self, axes: Axes, rank: int, topology: Topology) -> None:
        self.axes, self.rank, self.topology = axes, rank, topology
        self.states = axes.of_states
        self.tp, self.cp, self.num_pp = (axes.sizes[name] for name in ("tp", "cp", "pp"))
        self.copies = self.states.sizes["dp"]  # ranks with the same weights
        self.pp, self.copy = axes.place(rank, "pp"), self.states.place(rank, "dp")

    def of_replicas(self, size: int, stride: int) -> Level:
        """Of this rank's group of so many ranks with the same weights, so far apart."""
        return self.topology.level(self.states.group_of(self.rank, "dp", size, stride))

    def of_context(self) -> Level:
        return self.topology.level(self.axes.group_of(self.rank, "cp"))

    def of_tensor(self) -> Level:
        return self.along("tp")

    def along(self, axis: str) -> Level:
        """Of this rank's group along an axis."""
        return self.topology.level(self.axes.group_of(self.rank, axis))

    def of_stage(self, pp: int) -> Level:
        """Of this rank and the one that stands as it does in another pipeline stage."""
        stages = self.axes.group_of(self.rank, "pp")
        return self.topology.level((self.rank, stages[pp % self.num_pp]))

    def of_all(self) -> Level:
        return self.topology.level(range(self.axes.world_size))


def _all_sent(config: TrainConfig, seat: _Seat, placement: Placement) -> Iterator[_Calls]:
    num_stages = config.pp * config.vpp
    indices = config.stages.of_rank(seat.pp)
    ranks = Ranks(config.tp, config.gx, config.gy, config.gz)
    stages = [
        stage_parameters(config.model, i, num_stages, ranks, config.stages.layers(i))
        for i in indices
    ]
    if placement.fully_sharded:
        for units in stages:
            yield from _sharded(units, config, seat, placement)
    else:
        for units in stages:
            yield from _whole(list(in_order(units)), config, seat, placement)
    for index in indices:
        if config.tp > 1:
            yield from _tensor(config, seat, index, num_stages)
        if config.grid_axes:
            yield from _grid(config, seat, index)
        if config.cp > 1:
            yield from _context(config, seat, index)
        if config.pp > 1:
            yield from _pipeline(config, seat, index, num_stages)
    if (world_size := seat.axes.world_size) > 1:
        # Norm and loss; the share of tokens in the loss, and whether anybody is to stop.
        numbers = 2 + config.masks_loss + (config.save is not None)
        size = ring.all_reduce_bytes(numbers * 8, world_size)  # in float64
        yield _Calls("totals", seat.of_all(), size)


def _sharded(
    units: list[list[Parameter]], config: TrainConfig, seat: _Seat, placement: Placement
) -> Iterator[_Calls]:
    """Of the weights of a stage, where FSDP2 holds them."""
    node = seat.topology.replicas_per_node(seat.copies, seat.states.stride("dp"))
    partial = 0
    for shapes, same in Counter(tuple(p.shape for p in unit) for unit in units).items():
        unit = UnitLayout(placement, shapes, node)
        example = next(u for u in units if tuple(p.shape for p in u) == shapes)
        outermost = config.pp == 1 and not example[0].name.startswith("blocks.")
        gathers, copies = _gathers(config, placement, outermost)
        reductions = 1 if config.sums_whole_gradients else config.gas
        for sent in unit_traffic(unit, gathers, copies, reductions, seat.of_replicas):
            yield _Calls(sent.purpose, sent.level, sent.num_bytes, same)
        whole = {number for number, p in enumerate(example) if not p.traits.split}
        held = (s.length for s in unit.updated(seat.copy) if s.parameter in whole)
        partial += same * sum(held)
        if example[0].traits.shared:
            yield _embedding(unit.slice, seat)
    if partial and config.tp > 1 and config.sequence_parallel:
        yield _sum("tensor", partial * _FLOAT32_BYTES, seat)


def _gathers(config: TrainConfig, placement: Placement, outermost: bool) -> tuple[int, int]:
    """Gatherings of a unit in a step: from the stored weights, and from the secondary copy.

    One before each forward and each backward pass, but for the outermost unit without a pipeline:
    its backward pass begins where its forward pass has ended.
    """
    if placement.keeps_whole:
        return 1, 0
    stored, copies = gathers_per_step(
        config.gas,
        placement.secondary is not None,
        passes=1 if outermost else 2,
        refresh_each=config.refresh_secondary == "micro_batch",
    )
    return int(stored), int(copies)


def _whole(
    parameters: list[Parameter], config: TrainConfig, seat: _Seat, placement: Placement
) -> Iterator[_Calls]:
    """Of the whole weights of a stage, in buckets."""
    each = placement.gradients.degree > 1 and not config.sums_whole_gradients
    reductions = config.gas if each else 1
    shares = placement.optimizer.degree
    copies = seat.copies // shares
    wire, stored = placement.reduce_format, placement.weights.format
    for bucket in fill(reversed(parameters), config.ddp_bucket_size):
        total = padded(bucket, shares)
        share = total // shares
        if shares > 1:
            level = seat.of_replicas(shares, 1)
            sent = (shares - 1) * wire.num_bytes(share)
            yield _Calls("gradients", level, sent, reductions)
            yield _Calls("publish", level, (shares - 1) * stored.num_bytes(share))
        if copies > 1:
            size = ring.all_reduce_bytes(wire.num_bytes(share), copies)
            purpose = "gradients" if shares == 1 else "gradient_sync"
            yield _Calls(purpose, seat.of_replicas(copies, shares), size)
        if bucket[0].traits.shared and not config.stages.folded:
            yield _embedding(share, seat)
        if config.tp > 1 and config.sequence_parallel and not bucket[0].traits.split:
            yield _sum("tensor", share * _FLOAT32_BYTES, seat)
        if config.gz > 1 and "gz" not in bucket[0].traits.split:
            size = ring.all_reduce_bytes(share * _FLOAT32_BYTES, config.gz)
            yield _Calls("gradient_sync", seat.along("gz"), size)


def _embedding(numel: int, seat: _Seat) -> _Calls:
    """Of the tied embedding's gradients, between the first and the last stage."""
    size = ring.all_reduce_bytes(numel * _FLOAT32_BYTES, 2)
    return _Calls("embedding", seat.of_stage(-1 if seat.pp == 0 else 0), size)


def _sum(purpose: str, num_bytes: int, seat: _Seat, times: int = 1) -> _Calls:
    """An all-reduce over the tensor-parallel ranks."""
    size = ring.all_reduce_bytes(num_bytes, seat.tp)
    return _Calls(purpose, seat.of_tensor(), size, times)


def _tensor(config: TrainConfig, seat: _Seat, index: int, num_stages: int) -> Iterator[_Calls]:
    """Of tensor parallelism in a stage (Shoeybi et al. 2019; Korthikanti et al. 2022).

    A projection split by its outputs sums the gradient of its input, one split by its inputs sums
    its output. With sequence parallelism each sum is a reduce-scatter, and there is a gathering
    where activations become whole again: in the other pass of the same projection, and once more
    before the weight's gradient of a projection split by its outputs.
    """
    model, micro_batches = config.model, config.gas
    first, last = index == 0, index == num_stages - 1
    tokens = model.seq_length // config.cp * config.mbs
    whole = config.format.num_bytes(tokens * model.hidden_size)
    mine = config.stages.layers(index)
    layers = len(mine)
    sums = LAYER_SUMS * layers + last + first  # the embedding's output is a sum as well
    gathers = LAYER_GATHERS * layers + 2 * last + first
    if config.recompute == "full":
        # The repeated pass ends before the last sum of a layer, which no gradient needs.
        again = config.recomputed(mine)
        sums += again
        gathers += 2 * again
    if config.sequence_parallel:
        share = whole // seat.tp * (seat.tp - 1)
        yield _Calls("tensor", seat.of_tensor(), share, (sums + gathers) * micro_batches)
    else:
        yield _sum("tensor", whole, seat, sums * micro_batches)
    if last:  # the loss: the greatest logit, then the sum of exponentials and the target's logit
        yield _sum("tensor", tokens * _FLOAT32_BYTES, seat, micro_batches)
        yield _sum("tensor", 2 * tokens * _FLOAT32_BYTES, seat, micro_batches)


def _context(config: TrainConfig, seat: _Seat, index: int) -> Iterator[_Calls]:
    """Of context parallelism in a stage: keys and values go round the ring in each pass.

    Their gradients follow in the backward pass. Either recomputation repeats attention.
    """
    model = config.model
    keys = 2 * model.kv_heads // seat.tp * model.head_dim
    size = config.format.num_bytes(model.seq_length // seat.cp * config.mbs * keys)
    mine = config.stages.layers(index)
    rounds = 3 * len(mine) + config.recomputed(mine)
    yield _Calls("context", seat.of_context(), size, rounds * (seat.cp - 1) * config.gas)


def _grid(config: TrainConfig, seat: _Seat, index: int) -> Iterator[_Calls]:
    for sent in grid_calls(config, index):
        yield _Calls(sent.purpose, seat.along(sent.axis), sent.num_bytes, sent.times)


def _pipeline(config: TrainConfig, seat: _Seat, index: int, num_stages: int) -> Iterator[_Calls]:
    """Activations to the next stage, and their gradients to the one before."""
    share = config.cp * (config.tp if config.sequence_parallel else 1)
    numel = config.model.seq_length // share * config.mbs * config.model.hidden_size
    numel //= config.gy * config.gz
    size = config.format.num_bytes(numel)
    for near in (index + 1, index - 1):
        if 0 <= near < num_stages and (peer := config.stages.rank_of(near)) != seat.pp:
            yield _Calls("pipeline", seat.of_stage(peer), size, config.gas)
