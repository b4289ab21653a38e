"""Failed rows of a sweep that cannot be out of memory."""

from __future__ import annotations

import numpy as np

from analysis.sweeps.record import Keys, Table
from trainer.plan.jobs import Array, Mask

FREE = {"mbs", "gas", "dp", "world_size", "weight_shard", "gradient_shard", "optimizer_shard"}
"""Columns in which the run that contradicts a failure may differ from it."""


def not_memory(table: Table) -> Mask:
    """Failed rows that a run with at least their memory contradicts.

    The other run has the same machine, framework and columns, except that its micro-batch is no
    smaller, its micro-batches in flight (``min(pp, gas)`` under 1F1B) are no fewer, and, if states
    are sharded over replicas, its replicas are no more.
    """
    j = table.jobs
    columns = [column for name, column in j.columns().items() if name not in FREE]
    same = np.stack([*columns, _numbers(table.cluster), _numbers(table.framework)])
    flight = np.minimum(j.layout.gas, j.layout.pp * j.layout.vpp)
    ran = np.flatnonzero(~table.failed & np.isfinite(table.step_time_s))
    found = np.zeros(len(table), dtype=bool)
    for row in np.flatnonzero(table.failed):
        others = ran[np.all(same[:, ran] == same[:, row : row + 1], axis=0)]
        sharded = j.placement.zero_stage[row] != 0
        found[row] = np.any(
            (j.layout.mbs[others] >= j.layout.mbs[row])
            & (flight[others] >= flight[row])
            & ((j.layout.dp[others] <= j.layout.dp[row]) | (not sharded))
        )
    return found


def _numbers(keys: Keys) -> Array:
    return np.unique(keys, return_inverse=True)[1].astype(float)
