"""Context parallelism: sequences split over ranks; keys and values go round a ring.

Ring attention (Liu et al. 2023); Llama 3's all-gather (Llama Team 2024, section 3.3.2) sends the
same bytes. The ranks hold the same weights, so they reduce gradients and shard states together with
data parallelism.
"""

from __future__ import annotations

import numpy as np

from trainer.plan.axes.axis import Axis, Exchanges
from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import Array, Jobs
from trainer.plan.rules.requirement import STATED


def held_chunks(seq_length: int, rank: int, cp: int) -> tuple[range, ...]:
    """Positions of each sequence that a rank holds, in the rank's order; empty if cp is 1.

    Rank r holds chunks r and 2 cp - 1 - r of 2 cp, so that under a causal mask all ranks compute
    equally many query-key pairs.
    """
    if cp == 1:
        return ()
    size = seq_length // (2 * cp)
    return tuple(range(n * size, (n + 1) * size) for n in (rank, 2 * cp - 1 - rank))


def key_value_bytes(jobs: Jobs) -> Array:
    """Keys and values of a micro-batch's whole sequences, in one layer on one tp rank."""
    keys = 2 * jobs.model.kv_heads * jobs.model.head_dim / jobs.layout.tp
    return np.asarray(jobs.tokens * jobs.layout.cp * keys * jobs.options.element_bytes)


def layer_exchanges(jobs: Jobs, habits: Habits) -> Exchanges:
    """Keys and values in every pass, and their gradients in the backward pass.

    Each block is sent while attention works on the previous one. Full recomputation repeats
    attention, and so does selective, unless ``recompute_modules`` leave ``core_attn`` out.
    """
    group, num_bytes = jobs.layout.axes.group("cp"), key_value_bytes(jobs)
    again = np.where(jobs.repeats_core, 1.0, 0.0)
    return (
        Exchange("context", "all_gather", group, num_bytes, 1, "forward", "attention"),
        Exchange("context", "all_gather", group, num_bytes, again, "repeated", "attention"),
        Exchange("context", "all_gather", group, num_bytes, 1, "backward", "attention_backward"),
        Exchange(
            "context", "reduce_scatter", group, num_bytes, 1, "backward", "attention_backward"
        ),
    )


def working_bytes(jobs: Jobs) -> Array:
    """Receive buffers of keys and values: the block in use and the next one."""
    split = jobs.layout.cp
    return np.where(split > 1, 2 * key_value_bytes(jobs) / split, 0.0)


AXIS = Axis("cp", "context", layer_exchanges, STATED["cp"])
