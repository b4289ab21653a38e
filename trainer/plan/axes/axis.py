"""Record of one kind of parallelism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import Array, Jobs
from trainer.plan.rules.requirement import Requirement

Exchanges = tuple[Exchange, ...]
Cause = Literal["tensor", "context"]
"""Parts of the step time that exchanges within layers count as."""


@dataclass(frozen=True)
class Axis:
    """One kind of parallelism within layers; ``mesh`` places it among the ranks.

    Attributes:
        name: of its degree.
        cause: part of the step time that its exchanges count as.
        layer_exchanges: exchanges of one layer on one micro-batch, all passes.
        requirements: conditions on configurations with the axis.
        host_calls: blocking collectives per forward pass of a layer that the host launches between
            kernels; None: none.
    """

    name: str
    cause: Cause
    layer_exchanges: Callable[[Jobs, Habits], Exchanges]
    requirements: tuple[Requirement, ...] = ()
    host_calls: Callable[[Jobs, Habits], Array] | None = None
