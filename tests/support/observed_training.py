"""Training with a look inside: what ranks hold, what they sent, and disturbances between steps.

Part of ``rank_worker``; every function here is called on all ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import trainer.train
from trainer.model.initialize import initialize
from trainer.model.slices import WHOLE, TensorShard
from trainer.model.transformer import Stage
from trainer.parallel.loss import cross_entropy
from trainer.plan.config import TrainConfig
from trainer.runtime.device import Device
from trainer.train import Trainer
from trainer.zero.buckets import WholeWeights
from trainer.zero.fsdp import ShardedWeights


def observe(config: TrainConfig, data: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Train, and say how it went.

    Options:
        evaluate: run the model without gradients before every step.
        replay: afterwards load the first weights again and train a second time.
        poison: ``[step, rank]``: that rank's gradients of a micro-batch become NaN.
        stale: never tell that weights have changed.
        late_copies: ``fenced`` or ``open``: write secondary copies as late as is allowed.
        gradients: of a first step, compare those of every parameter with plain autograd's.

    Returns:
        ``losses``, ``grad_norms``, ``skipped_steps``; ``traffic`` of the last step, by rank, as
        ``Traffic.report`` gives it; ``holders``: for each state how many ranks hold it, and the
        names of those that differ in a bit; ``replayed``: the losses of the second time;
        ``gradients``: by parameter the greatest difference, relative to the greatest gradient.
    """
    training = Trainer(config, Device.of_this_rank("cpu"))
    if "late_copies" in options:
        copy_late(training, fenced=options["late_copies"] == "fenced")
    if options.get("stale"):
        for unit in training.weights.units:
            unit.gather.weights_changed = lambda: None
    first = [master.detach().clone() for master in masters(training)]
    result = run(training, config, data, options)
    if options.get("gradients"):
        result["gradients"] = gradient_errors(training, config, data)
    result["traffic"] = every_rank(training.traffic.report(1))
    result["biases"] = every_rank([m.router.bias.tolist() for m in training.balance.mixtures])
    result["holders"] = holders(training)
    if options.get("replay"):
        evaluate(training, config, data)  # leaves weights gathered that loading makes old
        for master, value in zip(masters(training), first, strict=True):
            master.detach().copy_(value)
        training.weights.publish()
        if training.optimizer.adamw is not None:
            training.optimizer.adamw.state.clear()
        result["replayed"] = run(training, config, data, options)["losses"]
    return result


def gradient_errors(training: Trainer, config: TrainConfig, data: Any) -> dict[str, float]:
    """After training: a trainer with the first weights, and the plain model beside it."""
    training = Trainer(config, Device.of_this_rank("cpu"))
    mesh = training.mesh
    plain = Stage(config.model)
    initialize(plain, "", config.model, config.seed)
    shape = {"seq_length": config.model.seq_length, "seed": config.seed}
    tokens, targets = data.samples(0, config.mbs * config.gas * mesh.states.size, **shape)
    cross_entropy(plain(tokens), targets, None).backward()
    expected = dict(plain.named_parameters())
    training.weights.start_step()
    training.run(training._read(0, data))
    training.depth.finish()
    training.weights.finish_gradients()
    errors: dict[str, float] = {}
    paths = {m: path for stage in training.stages for path, m in stage.named_modules()}
    for piece in training.weights.pieces():
        slot = piece.slot
        name = f"{paths[slot.module]}.{slot.name}"
        gradient = expected.get(name, expected["embedding.weight"]).grad
        mine, shift = piece.master.grad.flatten(), piece.begin - piece.start
        split = getattr(slot.module, "splits", {}).get(slot.name, WHOLE)
        parts = getattr(slot.module, "parts", None)
        shard = TensorShard(tuple(slot.parameter.shape), split, parts)
        assert shard.whole == tuple(gradient.shape)
        for one in shard.slices(piece.start, piece.length, 1 << 20):
            there = gradient
            for dim, (offset, size) in enumerate(zip(one.offsets, one.sizes, strict=True)):
                there = there.narrow(dim, offset, size)
            begin = one.begin + shift
            found = mine[begin : begin + there.numel()].view_as(there)
            error = ((found - there).abs().max() / gradient.abs().max()).item()
            errors[name] = max(errors.get(name, 0.0), error)
    worst: dict[str, float] = {}
    for own in every_rank(errors):
        worst |= {name: max(error, worst.get(name, 0.0)) for name, error in own.items()}
    return worst


def run(
    training: Trainer, config: TrainConfig, data: Any, options: dict[str, Any]
) -> dict[str, Any]:
    reports = []
    for number in range(config.steps):
        if options.get("evaluate"):
            evaluate(training, config, data)
        training.traffic.totals.clear()
        poison(options.get("poison"), number)
        reports.append(training.step(number, data))
    return {
        "losses": [report.loss for report in reports],
        "grad_norms": [report.grad_norm for report in reports],
        "skipped_steps": sum(not report.done for report in reports),
    }


def poison(where: list[int] | None, step: int) -> None:
    """Let one rank's loss, and with it all its gradients, be NaN in one micro-batch of a step."""
    trainer.train.cross_entropy = cross_entropy
    if where is None or where != [step, dist.get_rank()]:
        return

    def spoilt(logits: Tensor, targets: Tensor, group: Any) -> Tensor:
        trainer.train.cross_entropy = cross_entropy
        return cross_entropy(logits, targets, group) * float("nan")

    trainer.train.cross_entropy = spoilt


def evaluate(training: Trainer, config: TrainConfig, data: Any) -> None:
    """A forward pass that nobody differentiates."""
    first = 10_000 + training.mesh.replica * config.mbs
    tokens, _ = data.samples(
        first, config.mbs, seq_length=config.model.seq_length, seed=config.seed
    )
    with torch.no_grad():
        training.run.stage(tokens)


def masters(training: Trainer) -> list[torch.nn.Parameter]:
    return [master for group in training.weights.masters.values() for master in group]


def held(training: Trainer) -> Iterator[tuple[str, list[Tensor]]]:
    """All states of this rank, under names that ranks share which must hold the same."""
    mesh, placement = training.mesh, training.mesh.placement
    weights = training.weights
    weights.wait()
    if isinstance(weights, WholeWeights):
        for number, bucket in enumerate(weights.buckets):
            split = bucket.traits.split if mesh.grid.size > 1 else ("tp",)
            own = [str(axis.rank) for axis in mesh.inside if axis.name in split]
            place = f"pp {mesh.pp.rank} part {'-'.join(own) or 'whole'}"
            yield f"{place} stored {number}", [bucket.weights]
            share = mesh.states.rank % placement.optimizer_shard
            yield f"{place} master {share} {number}", [bucket.master]
        return
    place = f"pp {mesh.pp.rank} tp {mesh.tp.rank}"
    updates = f"{place} master {mesh.states.rank % placement.optimizer_shard}"
    assert isinstance(weights, ShardedWeights)
    stored = f"{place} stored {mesh.states.rank % placement.storage_degree}"
    for number, unit in enumerate(weights.units):
        yield f"{stored} {number}", unit.locals
        yield f"{updates} {number}", [piece.master for piece in unit.pieces]
        copy = unit.gather.secondary
        if copy is not None:
            yield f"{place} secondary {mesh.states.rank % copy.degree} {number}", [copy.share]


def holders(training: Trainer) -> dict[str, Any]:
    """By kind of state: how many ranks hold the same part, and the names of those that differ."""
    digests: dict[str, list[str]] = {}
    for mine in every_rank({name: digest(tensors) for name, tensors in held(training)}):
        for name, found in mine.items():
            digests.setdefault(name, []).append(found)
    counts: dict[str, list[int]] = {}
    for name, found in digests.items():
        counts.setdefault(name.split()[4], []).append(len(found))
    return {
        "counts": {kind: sorted(set(numbers)) for kind, numbers in counts.items()},
        "differ": [name for name, found in digests.items() if len(set(found)) > 1],
    }


class LateCopies:
    """A stream that copies only when somebody waits for it, or when the step has ended."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.given = 0

    def run(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)
        self.given += 1

    def record_event(self) -> int:
        return self.given

    def until(self, event: int) -> None:
        while self.given - len(self.waiting) < event:
            self.waiting.pop(0)()


class Gathering:
    """The stream beside it, which waits for events or does not."""

    def __init__(self, copies: LateCopies, fenced: bool) -> None:
        self.copies, self.fenced = copies, fenced

    def run(self, work: Callable[[], None]) -> None:
        work()

    def wait_event(self, event: int) -> None:
        if self.fenced:
            self.copies.until(event)


def copy_late(training: Trainer, fenced: bool) -> None:
    """Let secondary copies lag, in memory that holds NaN as long as nobody has written it."""
    copies = LateCopies()
    for unit in training.weights.units:
        secondary = unit.gather.secondary
        secondary.writing, secondary.reading = copies, Gathering(copies, fenced)
        secondary.share.fill_(float("nan"))
    publish = training.weights.publish

    def finish_step() -> None:
        training.weights.context.gathering.finish()
        copies.until(copies.given)
        publish()

    training.weights.publish = finish_step


def digest(tensors: list[Tensor]) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def every_rank(mine: Any) -> list[Any]:
    if not dist.is_initialized():
        return [mine]
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, mine)
    return seen
