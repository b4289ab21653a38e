"""The record of one kind of parallelism, with all that is specific to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import Array, Jobs
from trainer.plan.rules.requirement import Requirement

Exchanges = tuple[Exchange, ...]
Cause = Literal["tensor", "context"]
"""Parts of a step's time that count what axes exchange within layers."""


@dataclass(frozen=True)
class Axis:
    """One kind of parallelism within layers; ``mesh`` has its place among the ranks.

    Attributes:
        name: of its degree.
        cause: part of the step's time that its exchanges count as.
        layer_exchanges: what its ranks exchange in both passes of one layer on one micro-batch.
        requirements: conditions on configurations that have the axis.
        host_calls: collectives of a layer's forward pass that the host starts one by one between
            kernels, which wait for them; None: the host starts none in between.
    """

    name: str
    cause: Cause
    layer_exchanges: Callable[[Jobs, Habits], Exchanges]
    requirements: tuple[Requirement, ...] = ()
    host_calls: Callable[[Jobs, Habits], Array] | None = None
