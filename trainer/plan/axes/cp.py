"""Context parallelism: every sequence split over ranks, whose keys and values go round a ring.

Liu et al. 2023 (ring attention); Llama Team 2024, section 3.3.2, gathers them at once, which sends
the same bytes. The ranks hold the same weights: they reduce gradients and split states together
with the data-parallel ones. Rank r has chunks r and 2 cp - 1 - r of each sequence, so that all have
as much to attend to.
"""

from __future__ import annotations

import numpy as np

from trainer.plan.axes.axis import Axis, Exchanges
from trainer.plan.exchange import Exchange, Habits
from trainer.plan.jobs import Array, Jobs
from trainer.plan.rules.requirement import Requirement

REQUIREMENTS = tuple(
    Requirement(name, condition, words, builtin_only=True, axes=("cp",))
    for name, condition, words in (
        (
            "sequence_by_cp",
            "cp == 1 or seq_length % (2 * cp) == 0",
            "not divisible: seq_length {seq_length} by 2 * cp {cp}",
        ),
        (
            "sequence_by_tp_cp",
            "not sequence_parallel or seq_length % (tp * cp) == 0",
            "not divisible: seq_length {seq_length} by tp {tp} * cp {cp} (sequence_parallel)",
        ),
        (
            "cp_without_compile",
            "not compile or cp == 1",
            "compile beside cp {cp}: ring attention is no one graph; set compile: false",
        ),
    )
)


def key_value_bytes(jobs: Jobs) -> Array:
    """Keys and values of whole sequences of a micro-batch, in one layer on one tp rank."""
    keys = 2 * jobs.model.kv_heads * jobs.model.head_dim / jobs.layout.tp
    return np.asarray(jobs.tokens * jobs.layout.cp * keys * jobs.options.element_bytes)


def layer_exchanges(jobs: Jobs, habits: Habits) -> Exchanges:
    """Keys and values in each pass, and their gradients in the backward pass.

    Blocks of them come while attention works on those before. Either kind of recomputation repeats
    attention.
    """
    group, num_bytes = jobs.layout.axes.group("cp"), key_value_bytes(jobs)
    again = np.where(jobs.options.recompute > 0, 1.0, 0.0)
    return (
        Exchange("context", "all_gather", group, num_bytes, 1, "forward", "attention"),
        Exchange("context", "all_gather", group, num_bytes, again, "repeated", "attention"),
        Exchange("context", "all_gather", group, num_bytes, 1, "backward", "attention_backward"),
        Exchange(
            "context", "reduce_scatter", group, num_bytes, 1, "backward", "attention_backward"
        ),
    )


def working_bytes(jobs: Jobs) -> Array:
    """The neighbours' keys and values that a rank holds: those in use and those on their way."""
    split = jobs.layout.cp
    return np.where(split > 1, 2 * key_value_bytes(jobs) / split, 0.0)


AXIS = Axis("cp", "context", layer_exchanges, REQUIREMENTS)
