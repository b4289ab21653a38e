"""Bytes that one rank sends in a training step, from the plan's exchanges.

The counterpart of the counters of ``trainer.parallel.collectives``: the same purposes, links and
whole bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from search_spaces.known import framework_named
from support.expected_parameters import Parameter, Ranks, in_order, stage_parameters
from support.unit_exchanges import unit_exchanges
from trainer.plan.axes import cp, dp, ep, grid, pp, tp
from trainer.plan.axes.axis import Exchanges
from trainer.plan.axes.dp import Cuts, Holders, Wires, state_exchanges
from trainer.plan.axes.mesh import Size
from trainer.plan.config import TrainConfig
from trainer.plan.exchange import Exchange, Habits
from trainer.plan.formats import Format
from trainer.plan.jobs import RECOMPUTE, Jobs, jobs
from trainer.plan.placement import Level, Placement, Topology
from trainer.plan.shards import UnitLayout, fill, padded, sum_format
from trainer.plan.sizes import Matrix, layer_matrices
from trainer.plan.states import Degrees

Report = dict[str, dict[str, dict[str, int]]]
MESHTUNE = framework_named("meshtune")
_TIMES_AROUND = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "all_to_all": 1}
_SUMMED_BYTES = 4  # gradients between ranks are summed in float32


def once_bytes(exchange: Exchange) -> Size:
    """Bytes that each rank sends in one call; 0 in a group of one."""
    if exchange.operation == "send":
        return exchange.num_bytes
    ranks = exchange.group.size
    return _TIMES_AROUND[exchange.operation] * (ranks - 1) * exchange.num_bytes / ranks


def job_of(config: TrainConfig, world_size: int, local_world_size: int | None = None) -> Jobs:
    """A configuration as one row of what the cost model is asked about."""
    placement = config.place(world_size, local_world_size)
    formats = {
        "gather_bits": placement.gather_format,
        "reduce_bits": placement.reduce_format,
        "secondary_bits": placement.secondary_format,
    }
    names = ("gy", "gz", "cp", "pp", "vpp", "mbs", "gas")
    shards = ("weight_shard", "secondary_shard", "gradient_shard", "optimizer_shard")
    stated = ("sequence_parallel", "async_tp", "first_stage_layers", "last_stage_layers")
    return jobs(
        {
            **{name: getattr(config, name) for name in (*names, *stated)},
            **{name: getattr(placement, name) for name in shards},
            **{n: f.bits_with_scales if f.quantized else 0 for n, f in formats.items()},
            "tp": config.tp * config.gx,
            "ep": config.ep,
            "etp": 1,
            "dp": config.data_parallel(world_size),
            "pp_inside": config.axes(world_size).pp_inside,
            "reduces_once": config.reduce_gradients == "step",
            "recompute": RECOMPUTE[config.recompute],
            "element_bytes": config.format.bits / 8,
        },
        config.model,
    )


def expected_traffic(
    config: TrainConfig, world_size: int, rank: int = 0, local_world_size: int | None = None
) -> Report:
    """All that a rank sends in one step, as ``result.json`` reports it under ``communication``.

    Args:
        config: what is trained, by this project's own engine.
        world_size: ranks of the job.
        rank: which one; first and last pipeline stages send more, and levels may differ.
        local_world_size: ranks on a node, where the configuration does not say.

    Returns:
        ``{"bytes": {purpose: {level: n}}, "calls": {purpose: {level: n}}}``.

    Raises:
        ConfigError: if the configuration cannot run on so many ranks.
    """
    config.check(world_size, local_world_size)
    walk = _Walk(config, world_size, rank, local_world_size)
    counters: dict[str, Counter[tuple[str, Level]]] = {"bytes": Counter(), "calls": Counter()}
    for sent, ranks in walk.everything():
        times = round(float(_number(sent.times)))
        if len(ranks) > 1 and times:
            key = sent.purpose, walk.topology.level(ranks)
            counters["bytes"][key] += int(_number(once_bytes(sent))) * times
            counters["calls"][key] += times
    report: Report = {}
    for name, counter in counters.items():
        report[name] = {}
        for (purpose, level), total in sorted(counter.items()):
            report[name].setdefault(purpose, {})[level.value] = total
    return report


def _number(value: object) -> float:
    return float(np.asarray(value).item())


Sent = tuple[Exchange, Sequence[int]]
"""An exchange, and the ranks among which this one takes part in it."""


class _Walk:
    """The stages of one rank, and what it sends for each."""

    def __init__(
        self, config: TrainConfig, world_size: int, rank: int, local_world_size: int | None
    ) -> None:
        self.config, self.rank = config, rank
        self.job = job_of(config, world_size, local_world_size)
        self.topology: Topology = config.topology(world_size, local_world_size)
        self.placement: Placement = config.place(world_size, local_world_size)
        self.axes = config.axes(world_size)
        self.pp_rank = self.axes.place(rank, "pp")
        states = self.axes.of_states
        size, stride = states.sizes["dp"], states.stride("dp")
        self.holders = Holders(size, stride, config.tp, self.placement, world_size)
        apart = config.ep // config.tp if config.ep > 1 else 1
        self.of_experts = Holders(
            size // apart, stride * apart, config.ep, self.placement.among(apart), world_size
        )
        self.copy = states.place(rank, "dp")
        self.num_stages = config.pp * config.vpp

    def everything(self) -> Iterator[Sent]:
        config = self.config
        ranks = Ranks(config.tp, config.gx, config.gy, config.gz, config.ep)
        for index in config.stages.of_rank(self.pp_rank):
            layers = config.stages.layers(index)
            units = stage_parameters(config.model, index, self.num_stages, ranks, layers)
            dealt = [unit for unit in units if "ep" in unit[0].traits.split]
            if not self.placement.fully_sharded:
                yield from self._whole(units)
            elif self.of_experts.placement.fully_sharded:
                yield from self._sharded(units)
            else:
                yield from self._sharded([unit for unit in units if unit not in dealt])
                yield from self._whole(dealt)
            yield from self._of_experts(layers)
            for sent in self._of_stage(index):
                yield sent, sent.group.of(self.rank)
            yield from self._messages(index)
        world = range(self.axes.world_size)
        # Norm and loss; the share of tokens in the loss, and whether anybody is to stop.
        numbers = 2 + config.masks_loss + (config.save is not None)
        group = self.axes.of_states.group("dp", len(world))
        yield Exchange("totals", "all_reduce", group, 8 * numbers), world

    def _of_stage(self, index: int) -> Iterator[Exchange]:
        """Exchanges of a stage's activations, and of weights along the grid."""
        config, job = self.config, self.job
        first, last = index == 0, index == self.num_stages - 1
        layers = config.stages.layers(index)
        recomputed = layers if config.recompute != "none" else ()
        repeated = sum(layer % config.recompute_every == 0 for layer in recomputed)
        each = tp.layer_exchanges(job, MESHTUNE)
        sent = _of_layers(each, len(layers), repeated)
        sent += end_exchanges(job, MESHTUNE, first, last)
        for one in _of_layers(cp.layer_exchanges(job, MESHTUNE), len(layers), repeated):
            # The trainer passes blocks from rank to rank, and counts each.
            steps = config.cp - 1
            block = one.num_bytes / config.cp
            yield replace(
                one, operation="send", num_bytes=block, times=one.times * steps * config.gas
            )
        if config.grid_axes:
            sent += self._of_grid(len(layers), repeated, first, last)
        for one in sent:
            yield repeatedly(one, config.gas)

    def _of_experts(self, layers: range) -> Iterator[Sent]:
        """Tokens to experts and back, the numbers of them, and what balances experts."""
        config, mixture = self.config, self.config.model.mixture
        if mixture is None:
            return
        mixed = sum(layer >= mixture.dense_layers for layer in layers)
        states, tensor, context = (
            axes.group(name)
            for axes, name in ((self.axes.of_states, "dp"), (self.axes, "tp"), (self.axes, "cp"))
        )
        near = states.of(self.rank - self.rank % config.tp)
        dealt = [rank + i for rank in near for i in range(config.tp)]
        first = dealt.index(self.rank) // config.ep * config.ep
        dealt = dealt[first : first + config.ep]
        tokens = ep.layer_exchanges(self.job, MESHTUNE, self.job.model.mixture, lambda _: 1).plain
        yield repeatedly(tokens, mixed * config.gas), dealt
        numbers = 8 * mixture.num_experts
        counts = replace(tokens, purpose="routing", num_bytes=numbers, times=mixed * config.gas)
        yield counts, dealt
        for group in (context, tensor):
            if config.moe_aux_loss_coeff:
                sent = Exchange("routing", "all_reduce", group, numbers * config.mbs)
                yield repeatedly(sent, mixed * config.gas), group.of(self.rank)
        for group in (states, tensor):
            if config.moe_router_bias_update_rate and mixed:
                sent = Exchange("routing", "all_reduce", group, numbers * mixed)
                yield sent, group.of(self.rank)

    def _of_grid(self, layers: int, repeated: int, first: bool, last: bool) -> Exchanges:
        """Along gy and gz: products of layers and tables, norms and weights."""
        job, hidden = self.job, self.config.model.hidden_size
        matrices = layer_matrices(self.config.model)
        table = Matrix("table", hidden, self.config.model.vocab_size, True)
        sent: Exchanges = ()
        for matrix in matrices:
            sent += _of_layers(grid.product_sums(job, matrix), layers, repeated)
            sent += _of_layers(self._depth(matrix), layers, repeated)
        sent += _of_layers(norm_exchanges(job), 2 * layers, 2 * repeated)
        if last:
            sent += _of_layers((*grid.product_sums(job, table), *self._depth(table)), 1, 0)
            sent += _of_layers(norm_exchanges(job), 1, 0)
        return sent + (_of_layers(self._depth(table), 1, 0) if first else ())

    def _depth(self, matrix: Matrix) -> Exchanges:
        share = matrix.inputs * matrix.outputs // (self.config.gx * self.config.gy * self.config.gz)
        reduce = Format(self.config.reduce_precision)
        wires = self.placement.gather_format.num_bytes, reduce.num_bytes
        return grid.depth_exchanges(self.job, share, *wires)

    def _messages(self, index: int) -> Iterator[Sent]:
        """Activations to the next stage, and their gradients to the one before."""
        message = pp.message(self.job, MESHTUNE)
        stages = self.axes.group("pp").of(self.rank)
        for near in (index + 1, index - 1):
            peer = self.config.stages.rank_of(near) if 0 <= near < self.num_stages else self.pp_rank
            if peer != self.pp_rank:
                yield replace(message, times=self.config.gas), (self.rank, stages[peer])

    def _sharded(self, units: list[list[Parameter]]) -> Iterator[Sent]:
        """Weights that FSDP2 holds."""
        config = self.config
        partial = 0
        for parameters in units:
            dealt = "ep" in parameters[0].traits.split
            holders = self.of_experts if dealt else self.holders
            node = self.topology.replicas_per_node(holders.size, holders.stride)
            unit = UnitLayout(holders.placement, tuple(p.shape for p in parameters), node)
            outermost = config.pp == 1 and not parameters[0].name.startswith("blocks.")
            reductions = 1 if config.sums_whole_gradients else config.gas
            gathers = self._gathers(outermost, holders.placement)
            for sent in unit_exchanges(unit, holders, gathers, reductions):
                yield sent, sent.group.of(self.rank)
            whole = {number for number, p in enumerate(parameters) if not p.traits.split}
            partial += sum(s.length for s in unit.updated(self.copy) if s.piece in whole)
            if parameters[0].traits.shared:
                yield self._embedding(unit.slice)
        if partial and config.tp > 1 and config.sequence_parallel:
            yield self._sum("tensor", "tp", partial)

    def _gathers(self, outermost: bool, placement: Placement) -> tuple[int, int]:
        """Gatherings of a unit in a step: from the stored weights, and from the secondary copy.

        One before each forward and each backward pass, but for the outermost unit without a
        pipeline: its backward pass begins where its forward pass has ended.
        """
        if placement.keeps_whole:
            return 1, 0
        stored, copies = dp.gathers_per_step(
            self.config.gas,
            placement.secondary_shard > 0,
            passes=1 if outermost else 2,
            refresh_each=self.config.refresh_secondary == "micro_batch",
        )
        return int(stored), int(copies)

    def _whole(self, units: list[list[Parameter]]) -> Iterator[Sent]:
        """Whole weights, in buckets."""
        config = self.config
        for bucket in fill(reversed(list(in_order(units))), config.ddp_bucket_size):
            dealt = "ep" in bucket[0].traits.split
            holders = self.of_experts if dealt else self.holders
            placement = holders.placement
            each = placement.gradient_shard > 1 and not config.sums_whole_gradients
            total = padded(bucket, placement.optimizer_shard)
            reductions = config.gas if each else 1
            for sent in bucket_exchanges(config.format, total, holders, reductions):
                yield sent, sent.group.of(self.rank)
            share, traits = total // placement.optimizer_shard, bucket[0].traits
            if traits.shared and not config.stages.folded:
                yield self._embedding(share)
            if config.tp > 1 and config.sequence_parallel and not traits.split:
                yield self._sum("tensor", "tp", share)
            if config.gz > 1 and "gz" not in traits.split:
                yield self._sum("gradient_sync", "gz", share)

    def _sum(self, purpose: str, axis: str, numel: int) -> Sent:
        """Gradients of weights that all ranks of an axis hold, summed over them."""
        group = self.axes.group(axis)
        sent = Exchange(purpose, "all_reduce", group, numel * _SUMMED_BYTES)
        return sent, group.of(self.rank)

    def _embedding(self, numel: int) -> Sent:
        stages = self.axes.group("pp").of(self.rank)
        peer = stages[-1 if self.pp_rank == 0 else 0]
        return tied_embedding(self.job, numel), (self.rank, peer)


def repeatedly(exchange: Exchange, count: Size) -> Exchange:
    """The exchange with its number of calls multiplied."""
    return replace(exchange, times=exchange.times * count)


def _of_layers(exchanges: Exchanges, layers: int, repeated: int) -> Exchanges:
    """Exchanges of one layer, for so many layers of which some are computed again."""
    return tuple(
        repeatedly(one, repeated if one.within == "repeated" else layers) for one in exchanges
    )


def end_exchanges(jobs: Jobs, habits: Habits, first: bool, last: bool) -> Exchanges:
    """Sums of a micro-batch outside of the layers, on a stage with the first or the last of them.

    The embedding's output is a sum, and so is the gradient of the output layer's input. The loss
    sums the greatest logit, then the exponentials and the target's logit, in float32.
    """
    made = tp.sums(jobs, habits, {"forward": (first + last, first + 2 * last)})
    group, tokens = jobs.layout.axes.group("tp"), jobs.tokens
    loss = (Exchange("tensor", "all_reduce", group, n * tokens * 4) for n in (1, 2))
    return (*made, *(loss if last else ()))


def norm_exchanges(jobs: Jobs) -> Exchanges:
    """Moments of one norm's inputs, which lie along gy, in float32; the backward pass sums two."""
    group, moments = jobs.layout.axes.group("gy"), 2 * jobs.tokens * 4
    full = np.where(jobs.repeats_layers, 1.0, 0.0)
    gathered = jobs.layout.gy * moments
    return (
        Exchange("tensor", "all_gather", group, gathered, 1, "forward"),
        Exchange("tensor", "all_gather", group, gathered, full, "repeated"),
        Exchange("tensor", "all_reduce", group, moments, 1, "backward"),
    )


def tied_embedding(jobs: Jobs, weights: float) -> Exchange:
    """Gradients of so many weights of a tied table, summed between the first and the last stage."""
    group = jobs.layout.axes.group("pp", np.full(len(jobs), 2.0), jobs.layout.pp - 1)
    return Exchange("embedding", "all_reduce", group, 4 * weights)


def bucket_exchanges(
    stored: Format, total: int, holders: Holders, reductions: int
) -> Iterator[Exchange]:
    """All that one rank sends in a step for a flat bucket of whole weights; see ``padded``.

    Gradients go straight to the ranks that update them. Without a split there is one sum of them.
    """
    shares = holders.placement.optimizer_shard
    share = total // shares
    wire = sum_format(holders.placement).num_bytes
    whole = state_exchanges(
        holders,
        Degrees(1, 0, shares, shares),
        Cuts(total, 0, share, share),
        Wires(stored.num_bytes, stored.num_bytes, wire, wire),
        (0, 0),
        reductions,
    )
    yield whole.gradients
    yield whole.publish
    purpose = "gradients" if shares == 1 else "gradient_sync"
    yield replace(whole.gradient_sum, purpose=purpose)
