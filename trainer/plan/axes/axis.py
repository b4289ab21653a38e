"""The record of one kind of parallelism, with all that is specific to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import Jobs
from trainer.plan.rules.requirement import Requirement

Exchanges = tuple[Exchange, ...]


def no_exchanges(jobs: Jobs, habits: Habits) -> Exchanges:
    """Nothing is sent within a layer."""
    return ()


@dataclass(frozen=True)
class Axis:
    """One kind of parallelism; ``mesh`` has its place among the ranks and what they split.

    Attributes:
        name: of its degree.
        requirements: conditions on configurations that have the axis.
        layer_exchanges: what its ranks exchange in both passes of one layer on one micro-batch.
        cause: part of the step's time that these exchanges count as: ``tensor`` or ``context``.
    """

    name: str
    requirements: tuple[Requirement, ...] = ()
    layer_exchanges: Callable[[Jobs, Habits], Exchanges] = no_exchanges
    cause: str = "tensor"
