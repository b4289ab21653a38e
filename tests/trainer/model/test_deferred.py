"""Products of weights' gradients that wait: when they are computed, and behind what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.models import GPT
from trainer.model.deferred import DeferredKernels
from trainer.model.kernels import Kernels
from trainer.parallel.products import TensorParallel
from trainer.plan.config import TrainConfig
from trainer.plan.limits import ConfigError

Log = list[str]


class Sums:
    """Notes when sums over two ranks begin and are waited for."""

    size = 2

    def __init__(self, log: Log) -> None:
        self.log = log

    def all_reduce(self, x: Tensor, purpose: str, async_op: bool) -> Sums:
        self.log.append("sum")
        return self

    def wait(self) -> None:
        self.log.append("summed")


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def deferred(log: Log) -> DeferredKernels:
    kernels = DeferredKernels(Kernels())
    kernels.receive = lambda weight, gradient: log.append(f"weight {gradient[0, 0]:.0f}")
    return kernels


def backward(kernels: DeferredKernels, log: Log, number: int) -> Any:
    """Of a micro-batch with two layers, whose weights' gradients are its number."""
    weight = nn.Parameter(torch.ones(1, 1))
    for _ in range(2):
        x, by = torch.full((1, 1, 1), float(number)), TensorParallel(Sums(log), False, kernels)
        by.column_backward(torch.ones(1, 1, 1), x, weight, weight, False)
    return kernels.taken()


def test_what_waits_the_longest_hides_sums_while_forward_passes_are_left(
    deferred: DeferredKernels, log: Log
) -> None:
    deferred.forwards_left = 1
    one, two = backward(deferred, log, 1), backward(deferred, log, 2)
    assert log == 2 * ["sum", "weight 1", "summed"] + 2 * ["sum", "weight 2", "summed"]
    log.clear()
    one()
    two()
    assert log == []
    deferred.forwards_left = 0
    waits = backward(deferred, log, 3)
    assert log == ["sum", "summed"] * 2
    deferred.forwards_left = 1
    log.clear()
    later = backward(deferred, log, 4)
    assert log == ["sum", "weight 3", "summed"] * 2
    log.clear()
    waits()
    later()
    assert log == ["weight 4"] * 2


def test_at_a_steps_end_products_wait_for_idle_time(deferred: DeferredKernels, log: Log) -> None:
    waits = backward(deferred, log, 1)
    assert log == ["sum", "summed"] * 2
    log.clear()
    waits()
    waits()
    assert log == ["weight 1"] * 2


@pytest.mark.parametrize("changes", [{"compile": True}, {"recompute": "selective"}])
@pytest.mark.parametrize("schedule", ["InterleavedZeroBubble", "ZBVZeroBubble"])
def test_products_that_wait_are_refused_where_others_own_their_operands(
    schedule: str, changes: dict[str, Any]
) -> None:
    """Compiled code reuses the memory of what they are still to read."""
    values = {"model": GPT.model_dump(), "data": "unused", "pp": 2, "vpp": 2, "gas": 4}
    TrainConfig.parse({**values, "pipeline_schedule": schedule}).check(2)
    config = TrainConfig.parse({**values, "pipeline_schedule": schedule, **changes})
    with pytest.raises(ConfigError, match="its products are not by themselves"):
        config.check(2)
