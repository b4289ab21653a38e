"""Failed rows of a sweep that cannot be out of memory."""

from __future__ import annotations

import numpy as np

from analysis.cost.jobs import Array, Mask
from analysis.sweeps.record import Keys, Table


def not_memory(table: Table) -> Mask:
    """Failed rows that a run with at least their memory contradicts.

    The other run has the same model, machine, framework, tensor and pipeline degrees, placement
    and recomputation, no smaller micro-batch, no fewer micro-batches in flight (``min(pp, gas)``
    under 1F1B) and, as what is sharded over replicas gets larger with fewer of them, no more
    replicas unless nothing is.
    """
    j = table.jobs
    columns = [j.num_layers, j.hidden_size, j.ffn_size, j.seq_length, j.tp, j.pp, j.vpp]
    columns += [j.zero_stage, j.recompute, j.sequence_parallel.astype(float)]
    same = np.stack([*columns, _numbers(table.cluster), _numbers(table.framework)])
    flight = np.minimum(j.gas, j.pp * j.vpp)
    ran = np.flatnonzero(~table.failed & np.isfinite(table.step_time_s))
    found = np.zeros(len(table), dtype=bool)
    for row in np.flatnonzero(table.failed):
        others = ran[np.all(same[:, ran] == same[:, row : row + 1], axis=0)]
        sharded = j.zero_stage[row] != 0
        found[row] = np.any(
            (j.mbs[others] >= j.mbs[row])
            & (flight[others] >= flight[row])
            & ((j.dp[others] <= j.dp[row]) | (not sharded))
        )
    return found


def _numbers(keys: Keys) -> Array:
    return np.unique(keys, return_inverse=True)[1].astype(float)
