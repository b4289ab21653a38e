"""The secondary copy of weights under every order that a device may run its streams in.

The schedule is Algorithm 1 of Dai et al. 2024: forward passes, each followed by an asynchronous
copy into the secondary shard, then backward passes whose gatherings from the copy are prefetched.
What is enqueued here are pieces of work with the order that streams and events promise, and no
more; the device is free to run them in any order that keeps it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from trainer.plan.formats import Format
from trainer.plan.placement import Placement
from trainer.plan.shards import UnitLayout
from trainer.zero.background import InlineStream
from trainer.zero.secondary import SecondaryCopy

WIDTH = 4
LEARNING_RATE = 0.1
INPUT = torch.linspace(-1, 1, WIDTH)


class Device:
    """Work that was enqueued, each piece with those that must be done before it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []
        self.needs: list[set[int]] = []

    def enqueue(self, work: Callable[[], None], needs: set[int]) -> int:
        self.work.append(work)
        self.needs.append(needs)
        return len(self.work) - 1

    def orders(self) -> Iterator[list[int]]:
        """Every order that keeps all needs (the linear extensions of the partial order)."""
        order: list[int] = []
        done: set[int] = set()

        def extend() -> Iterator[list[int]]:
            if len(order) == len(self.work):
                yield order
                return
            for piece in range(len(self.work)):
                if piece not in done and self.needs[piece] <= done:
                    order.append(piece)
                    done.add(piece)
                    yield from extend()
                    done.remove(order.pop())

        return extend()

    def random_order(self, seed: int) -> list[int]:
        """One of them."""
        choose, done = random.Random(seed), []
        missing = [set(needs) for needs in self.needs]
        ready = [piece for piece, needs in enumerate(missing) if not needs]
        while ready:
            piece = ready.pop(choose.randrange(len(ready)))
            done.append(piece)
            for other, needs in enumerate(missing):
                if piece in needs:
                    needs.remove(piece)
                    if not needs:
                        ready.append(other)
        return done


class Stream:
    """In order with itself, and after the events that it was told of."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.last: int | None = None
        self.events: set[int] = set()

    def run(self, work: Callable[[], None]) -> None:
        needs = self.events | ({self.last} if self.last is not None else set())
        self.last = self.device.enqueue(work, needs)

    def record_event(self) -> int | None:
        return self.last

    def wait_event(self, event: int | None) -> None:
        if event is not None:
            self.events.add(event)

    def finish(self) -> None:
        """Nothing runs before an order is chosen."""


class Training:
    """Layers y = tanh(W x) and the loss |y|^2, on enqueued work alone.

    Args:
        layers: their number.
        steps: of training; the loss of each is kept, then that after the last.
        stored: format of the secondary copy.
        fenced: whether gatherings heed the events behind the copies.
    """

    def __init__(self, layers: int, steps: int, stored: Format, fenced: bool) -> None:
        self.layers = layers
        self.device = Device()
        self.gathers, self.copies = Stream(self.device), Stream(self.device)
        self.compute = Stream(self.device)
        placement = Placement(
            dp=2,
            weight_shard=2,
            secondary_shard=1,
            secondary_format=stored,
            gradient_shard=2,
            optimizer_shard=2,
            gather_format=Format.FP32,
            reduce_format=Format.FP32,
        )
        layout = UnitLayout(placement, ((WIDTH, WIDTH),))
        reader = _Reader(self.gathers, fenced)
        self.seconds = [
            SecondaryCopy(layout, None, 0, torch.float32, torch.device("cpu"), self.copies, reader)
            for _ in range(layers)
        ]
        for _ in range(steps):
            self._enqueue_step()
        self._enqueue_forward(copy=False)

    def _enqueue_forward(self, copy: bool) -> None:
        for k in range(self.layers):
            whole = torch.empty(WIDTH * WIDTH)
            self.gathers.run(partial(self._gather, k, whole))
            self.compute.wait_event(self.gathers.record_event())
            self.compute.run(partial(self._forward, k, whole))
            if copy:
                self.copies.wait_event(self.compute.record_event())
                self.seconds[k].refresh(whole)

    def _enqueue_step(self) -> None:
        self._enqueue_forward(copy=True)
        wholes, marks = {}, {}

        def prefetch(k: int) -> None:
            wholes[k] = torch.empty(WIDTH * WIDTH)
            self.seconds[k].gather(wholes[k])
            marks[k] = self.gathers.record_event()

        prefetch(self.layers - 1)
        for k in reversed(range(self.layers)):
            if k:
                prefetch(k - 1)
            self.compute.wait_event(marks[k])
            self.compute.run(partial(self._backward, k, wholes[k]))
        self.compute.run(self._update)
        self.gathers.wait_event(self.compute.record_event())

    def _gather(self, k: int, whole: Tensor) -> None:
        whole.copy_(self.weights[k].flatten())

    def _forward(self, k: int, whole: Tensor) -> None:
        if k == 0:
            self.inputs = [INPUT]
        self.inputs.append(torch.tanh(whole.view(WIDTH, WIDTH) @ self.inputs[-1]))
        if k == self.layers - 1:
            self.losses.append(float(self.inputs[-1].square().sum()))

    def _backward(self, k: int, whole: Tensor) -> None:
        out = self.inputs[k + 1]
        grad = 2 * out if k == self.layers - 1 else self.grad
        grad = grad * (1 - out.square())
        self.changes[k] = torch.outer(grad, self.inputs[k])
        self.grad = whole.view(WIDTH, WIDTH).t() @ grad

    def _update(self) -> None:
        for weight, change in zip(self.weights, self.changes, strict=True):
            weight -= LEARNING_RATE * change

    def run(self, order: list[int]) -> list[float]:
        """Losses when the device chooses this order."""
        generator = torch.Generator().manual_seed(1)
        self.weights = list(torch.randn(self.layers, WIDTH, WIDTH, generator=generator))
        self.changes = [torch.zeros(WIDTH, WIDTH)] * self.layers
        self.losses: list[float] = []
        for second in self.seconds:
            unwritten(second.share)
        with torch.no_grad():
            for piece in order:
                self.device.work[piece]()
        return self.losses


class _Reader:
    """The gathering stream as the secondary copy sees it, with or without the fence."""

    def __init__(self, stream: Stream, fenced: bool) -> None:
        self.run = stream.run
        self.wait_event = stream.wait_event if fenced else lambda event: None


def unwritten(share: Tensor) -> None:
    """What fresh memory may hold: as floats, and as scales of quantized blocks, NaN."""
    share.view(torch.uint8).fill_(0xFF)


@pytest.fixture(params=[Format.FP32, Format.INT8])
def stored(request: pytest.FixtureRequest) -> Format:
    return request.param


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("degree", [2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(3,), (1,), (2, 5), (40, 3)])
def test_shares_hold_the_weights_and_zeros_behind_them(
    shape: tuple[int, ...], degree: int, ranks: int
) -> None:
    """Parameters smaller than the ranks that share them: DeepSpeed #8210."""
    dp = math.lcm(ranks, degree)
    placement = Placement(
        dp=dp,
        weight_shard=ranks,
        secondary_shard=degree,
        gradient_shard=ranks,
        optimizer_shard=ranks,
        gather_format=Format.FP32,
        reduce_format=Format.FP32,
    )
    layout = UnitLayout(placement, (shape,))
    whole = torch.arange(1.0, 1 + ranks * layout.used)
    shares, in_order = [], InlineStream()
    for rank in range(degree):
        cpu = torch.device("cpu")
        copy = SecondaryCopy(layout, None, rank, torch.float32, cpu, in_order, in_order)
        unwritten(copy.share)
        copy.refresh(whole)
        shares.append(copy.share.flatten())
    joined = torch.cat(shares)
    assert joined[: whole.numel()].equal(whole)
    assert not joined[whole.numel() :].any()


def expected(training: Training) -> list[float]:
    """When the device runs everything as it was enqueued."""
    return training.run(list(range(len(training.device.work))))


@pytest.mark.parametrize(("layers", "steps"), [(3, 1), (2, 2)])
def test_with_the_fence_no_order_reads_what_was_not_written(
    stored: Format, layers: int, steps: int
) -> None:
    training = Training(layers, steps, stored, fenced=True)
    losses = expected(training)
    assert losses[-1] < losses[0]
    outcomes = [training.run(order) for order in training.device.orders()]
    assert len(outcomes) > 100
    assert all(outcome == losses for outcome in outcomes)


def test_without_the_fence_some_order_gives_a_loss_that_is_not_a_number(stored: Format) -> None:
    training = Training(2, 1, stored, fenced=False)
    assert all(math.isfinite(loss) for loss in expected(training))  # by luck
    outcomes = [training.run(order)[1] for order in training.device.orders()]
    assert 0 < sum(math.isnan(loss) for loss in outcomes) < len(outcomes)


def test_without_the_fence_some_order_reads_the_last_steps_weights_unnoticed() -> None:
    training = Training(2, 2, Format.FP32, fenced=False)
    losses = expected(training)
    outcomes = [training.run(training.device.random_order(seed)) for seed in range(300)]
    assert any(outcome != losses and math.isfinite(outcome[-1]) for outcome in outcomes)


def test_many_layers_and_steps_train_alike_in_any_order() -> None:
    training = Training(8, 4, Format.FP32, fenced=True)
    losses = expected(training)
    for seed in range(20):
        assert training.run(training.device.random_order(seed)) == losses


def test_many_layers_break_in_most_orders_without_the_fence() -> None:
    training = Training(8, 4, Format.FP32, fenced=False)
    last = [training.run(training.device.random_order(seed))[-1] for seed in range(20)]
    assert sum(math.isnan(loss) for loss in last) > len(last) / 2
