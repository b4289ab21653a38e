"""A collective of a step, as bytes are counted and seconds are priced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.cost.groups import RankGroup
from analysis.cost.jobs import Array
from trainer.plan.ring import share_sent

Operation = Literal["all_gather", "reduce_scatter", "all_reduce"]
_TIMES_AROUND = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}


@dataclass(frozen=True)
class Exchange:
    """A collective of a step; columns of shape (n,).

    Attributes:
        operation: which.
        group: its ranks.
        num_bytes: of the whole tensor.
        times: per step.
    """

    operation: Operation
    group: RankGroup
    num_bytes: Array
    times: Array

    @property
    def sent_bytes(self) -> Array:
        """What each rank sends per step; nothing in a group of one."""
        once = _TIMES_AROUND[self.operation] * share_sent(self.group.size) * self.num_bytes
        return np.asarray(once * self.times)
