"""Record of one kind of parallelism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import Array, Jobs
from trainer.plan.rules.requirement import Requirement

Exchanges = tuple[Exchange, ...]
Cause = Literal["tensor", "context"]  # parts of the step time that exchanges within layers count as


@dataclass(frozen=True)
class Axis:
    """One kind of parallelism within layers; ``mesh`` places it among the ranks."""

    name: str  # of its degree
    cause: Cause  # part of the step time that its exchanges count as
    # exchanges of one layer on one micro-batch, all passes
    layer_exchanges: Callable[[Jobs, Habits], Exchanges]
    requirements: tuple[Requirement, ...] = ()  # conditions on configurations with the axis
    # blocking collectives that the host launches per forward pass of a layer, if any
    host_calls: Callable[[Jobs, Habits], Array] | None = None
